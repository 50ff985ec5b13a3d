"""Lanes that are slower than their peers or their links, or were not meant (fault 32)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.doctor.facts import MOVER, Gpu, Interface, ProcessFacts
from worldline.doctor.finding import Severity
from worldline.doctor.lanecheck import Path, Push, check_paths, human_rate, link_bytes_per_s

MIB = 1 << 20
HOST = ProcessFacts(MOVER, "a", "a", boot_id="host-1", devices=("cpu",))
FAR = replace(HOST, instance="b", node_id="b", boot_id="host-2")
NEAR = replace(HOST, instance="c", node_id="c")
IN_PLACE = ("in-place/memory", "posix/memory")


def path(
    source: str, target: str, rate_mb_per_s: float, lanes: tuple[str, ...] = ("tcp/eth0",)
) -> Path:
    """Of that rate, with a latency of a millisecond."""
    pushes = (Push(4096, 1.0), Push(64 * MIB + 4096, 1.0 + 64 * MIB / (rate_mb_per_s * 1e3)))
    return Path(source, target, lanes, pushes, source_device="cpu", target_device="cpu")


def codes(*paths: Path, movers: tuple[ProcessFacts, ...] = (HOST, FAR, NEAR)) -> list[str]:
    return [f"{one.code} {one.subject}" for one in check_paths(paths, movers)]


@given(st.floats(1.0, 1e5), st.floats(0.01, 10.0))
def test_rate_and_latency_are_told_apart(rate_mb_per_s: float, latency_ms: float) -> None:
    wire_ms = 64 * MIB / (rate_mb_per_s * 1e3)
    pushes = (
        Push(4096, latency_ms * 1.5),
        Push(4096, latency_ms),
        Push(64 * MIB + 4096, latency_ms + wire_ms),
        Push(64 * MIB + 4096, 2 * latency_ms + wire_ms),
    )
    measured = Path("a", "b", ("tcp/eth0",), pushes)
    assert measured.latency_ms == latency_ms
    if wire_ms >= 1.01 * latency_ms:
        assert measured.rate_bytes_per_s == pytest.approx(rate_mb_per_s * 1e6, rel=1e-6)
    # Never more than the wire can have carried.
    assert measured.rate_bytes_per_s <= (64 * MIB + 4096) / wire_ms * 1e3 * (1 + 1e-6)


def test_a_push_that_is_mostly_latency_says_the_least_that_the_lane_carries() -> None:
    quick = Path("a", "b", ("tcp/eth0",), (Push(4096, 1.0), Push(64 * MIB, 1.5)))
    assert quick.rate_bytes_per_s == 64 * MIB / 1.5e-3


def test_without_pushes_there_is_no_rate() -> None:
    nothing = Path("a", "b", refused="RECEIVER_BUSY")
    assert (nothing.rate_bytes_per_s, nothing.latency_ms) == (0.0, 0.0)
    assert codes(nothing) == []


def test_a_path_far_below_those_like_it_is_slow() -> None:
    usual = [path("a", "b", 1000), path("b", "c", 1100), path("c", "b", 900)]
    assert codes(*usual) == []
    slow = path("b", "a", 300)
    assert codes(*usual, slow) == ["LANE_SLOW b to a"]
    (found,) = check_paths([*usual, slow], ())
    assert "tcp/eth0 carries 300.00 MB/s" in found.what
    assert "1.00 GB/s" in found.what
    assert found.field == "eth0"


def test_a_path_through_memory_that_is_slow_is_worth_a_word_and_no_more() -> None:
    paths = [path("a", "b", 1000, IN_PLACE), path("b", "a", 100, IN_PLACE)]
    (found,) = check_paths(paths, ())
    assert (found.code, found.severity, found.field) == ("LANE_SLOW", Severity.INFO, "")
    assert "ethtool" not in found.remedy


def test_only_paths_of_one_kind_are_compared() -> None:
    assert codes(path("a", "b", 100), path("a", "c", 5000, IN_PLACE)) == []
    gpu = replace(path("b", "a", 5000), source_device="cuda:0", target_device="cuda:1")
    assert codes(path("a", "b", 100), gpu) == []


def test_tcp_between_neighbours_is_a_fall_back() -> None:
    assert codes(path("a", "c", 100)) == ["LANE_FALLBACK a to c"]
    assert codes(path("a", "c", 100, IN_PLACE)) == []
    assert codes(path("a", "b", 100)) == []


def test_tcp_between_hosts_that_have_rdma_is_a_fall_back() -> None:
    ends = replace(HOST, rdma_devices=("mlx5_0:1",)), replace(FAR, rdma_devices=("mlx5_0:1",))
    assert codes(path("a", "b", 100), movers=ends) == ["LANE_FALLBACK a to b"]
    assert codes(path("a", "b", 100), movers=(ends[0], FAR)) == []
    rdma = ("rc_mlx5/mlx5_0:1", "tcp/eth0")
    assert codes(path("a", "b", 100, rdma), movers=ends) == []


def test_staged_bytes_between_gpus_of_one_machine() -> None:
    gpus = replace(HOST, devices=("cuda:0",)), replace(NEAR, devices=("cuda:1",))
    staged = path("a", "c", 100, ("posix/memory", "staged/pinned"))
    assert codes(staged, movers=gpus) == ["LANE_STAGED a to c"]
    assert codes(staged) == []


def test_a_lane_is_held_against_its_link() -> None:
    fast = replace(HOST, interfaces=(Interface("eth0", True, 100_000),))
    slow, fine = path("a", "b", 1200), path("a", "b", 1300)
    assert link_bytes_per_s(slow, fast, FAR) == 12.5e9
    assert codes(slow, movers=(fast, FAR)) == ["LANE_BELOW_LINK a to b"]
    assert codes(fine, movers=(fast, FAR)) == []
    assert link_bytes_per_s(slow, HOST, FAR) == 0.0
    bus = Gpu("cuda:0", pcie_generation_max=4, pcie_lanes=16)
    gpu = replace(HOST, devices=("cuda:0",), gpus=(bus,))
    staged = replace(path("a", "b", 100, ("staged/pinned", "tcp/eth0")), source_device="cuda:0")
    assert link_bytes_per_s(staged, gpu, FAR) == 16 * 1.969e9


def test_rates_in_words() -> None:
    assert [human_rate(rate) for rate in (1.5e9, 2.5e6, 900)] == [
        "1.50 GB/s",
        "2.50 MB/s",
        "0.9 kB/s",
    ]
