"""Shared memory (fault 34), locked memory, pages, and torch's allocator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from worldline.doctor.facts import DEV_SHM, ENGINE, MOVER, ProcessFacts
from worldline.doctor.finding import Severity
from worldline.doctor.memorycheck import check_memory, check_shared_memory

MIB = 1 << 20
PLENTY = ProcessFacts(
    MOVER,
    "node-1",
    devices=("cpu",),
    settings={"lane": "auto", "slot_count": "3", "slot_bytes": str(64 * MIB + 1)},
    shared_memory_total_bytes=1024 * MIB,
    shared_memory_free_bytes=1000 * MIB,
    huge_pages_total=64,
)


def codes(facts: ProcessFacts) -> list[tuple[str, Severity]]:
    found = (*check_shared_memory(facts), *check_memory(facts))
    return [(one.code, one.severity) for one in found]


def test_plenty_is_fine() -> None:
    assert codes(PLENTY) == []


@pytest.mark.parametrize(
    ("total", "free", "expected"),
    [
        (MIB, MIB, ("SHARED_MEMORY_TOO_SMALL", Severity.ERROR)),
        (16 * MIB, 16 * MIB, ("SHARED_MEMORY_TOO_SMALL", Severity.ERROR)),
        (4096 * MIB, 31 * MIB, ("SHARED_MEMORY_TOO_SMALL", Severity.ERROR)),
        (64 * MIB, 60 * MIB, ("SHARED_MEMORY_SMALL", Severity.WARNING)),
    ],
)
def test_a_small_dev_shm(total: int, free: int, expected: tuple[str, Severity]) -> None:
    small = replace(PLENTY, shared_memory_total_bytes=total, shared_memory_free_bytes=free)
    assert codes(small) == [expected]
    (found,) = check_shared_memory(small)
    assert found.field == DEV_SHM
    assert "--shm-size" in found.remedy


@pytest.mark.parametrize(
    "without",
    [
        {"settings": {"lane": "tcp"}},
        {"environment": {"UCX_TLS": "tcp,self"}},
        {"service": ENGINE},
        {"shared_memory_total_bytes": None, "shared_memory_free_bytes": None},
    ],
)
def test_who_takes_none_needs_none(without: dict[str, object]) -> None:
    tiny = replace(PLENTY, shared_memory_total_bytes=MIB, shared_memory_free_bytes=MIB)
    assert check_shared_memory(replace(tiny, **without)) == ()  # type: ignore[arg-type]


def test_variables_win_over_the_lane() -> None:
    tiny = replace(
        PLENTY,
        settings={"lane": "tcp"},
        environment={"UCX_TLS": "sm,tcp"},
        shared_memory_total_bytes=MIB,
        shared_memory_free_bytes=MIB,
    )
    assert codes(tiny) == [("SHARED_MEMORY_TOO_SMALL", Severity.ERROR)]


def test_locked_memory_matters_where_rdma_is() -> None:
    limited = replace(PLENTY, memlock_max_bytes=8 * MIB)
    assert codes(limited) == []
    rdma = replace(limited, rdma_devices=("mlx5_0:1",))
    assert codes(rdma) == [("MEMLOCK_TOO_SMALL", Severity.ERROR)]
    assert codes(replace(rdma, memlock_max_bytes=None)) == []
    assert codes(replace(rdma, memlock_max_bytes=64 * MIB + 1)) == []


def test_pages_for_all_slots_are_counted() -> None:
    (found,) = check_memory(replace(PLENTY, huge_pages_total=0))
    assert (found.code, found.severity) == ("NO_HUGE_PAGES", Severity.INFO)
    # Three of 64 MiB and a byte, beside what the machine has for others.
    assert found.remedy == "sysctl vm.nr_hugepages=$(( $(sysctl -n vm.nr_hugepages) + 97 ))"
    assert codes(replace(PLENTY, huge_pages_total=0, shared_memory_may_be_huge=True)) == []
    assert codes(replace(PLENTY, huge_pages_total=0, devices=("cuda:0",))) == []


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
@pytest.mark.parametrize(
    ("value", "expands"),
    [
        ("expandable_segments:True", True),
        ("max_split_size_mb:128, expandable_segments : true", True),
        ("expandable_segments:False", False),
        ("max_split_size_mb:128", False),
        ("", False),
    ],
)
def test_expandable_segments(name: str, value: str, expands: bool) -> None:
    gpu = replace(PLENTY, service=ENGINE, devices=("cuda:0",), environment={name: value})
    assert codes(gpu) == ([("EXPANDABLE_SEGMENTS", Severity.WARNING)] if expands else [])
    cpu = replace(gpu, devices=("cpu",))
    assert codes(cpu) == ([("EXPANDABLE_SEGMENTS", Severity.INFO)] if expands else [])
