"""The verified rate between its bounds, against a pipeline that is walked chunk by chunk."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.admissibility.schedule import Schedule, VerificationPlacement
from worldline.admissibility.verified_rate import VerifiedWire, rate_with_tail_bytes_per_s
from worldline.errors import InvalidInput

GRANULE = 4
SEQUENTIAL = Schedule(VerificationPlacement.SEQUENTIAL)
PIPELINED = Schedule(VerificationPlacement.PIPELINED)
TAIL = Schedule(VerificationPlacement.TAIL)

rates = st.floats(1.0, 1e15)
near_rates = st.floats(10.0, 1000.0)
sizes = st.integers(1, 700)
states = st.integers(1, 2**63 - 1)
schedules = st.builds(
    lambda placement, count: Schedule(placement, count * GRANULE, GRANULE),
    st.sampled_from(VerificationPlacement),
    st.integers(1, 9),
)


def _walked_ms(wire: VerifiedWire, state_bytes: int, schedule: Schedule) -> float:
    """Each chunk after the one before it on the wire, then after it in the engine."""
    landed_s, digested_s = 0.0, 0.0
    for run in schedule.runs(state_bytes):
        for _ in range(run.chunks):
            landed_s += run.chunk_bytes / wire.wire_rate_bytes_per_s
            begun_s = max(landed_s, digested_s)
            digested_s = begun_s + run.chunk_bytes / wire.digest_rate_bytes_per_s
    return digested_s * 1e3


def test_one_transfer_by_hand() -> None:
    # 3 chunks of 16 bytes, 8 ms each on the wire and 4 ms in the engine.
    wire, chunks = VerifiedWire(2_000.0, 4_000.0), Schedule(chunk_bytes=16, granule_bytes=4)
    assert wire.transfer_ms(48, chunks) == pytest.approx(24 + 4)
    # An engine half as fast as the wire is waited for, after the first chunk's crossing.
    assert VerifiedWire(2_000.0, 1_000.0).transfer_ms(48, chunks) == pytest.approx(8 + 48)


@given(near_rates, near_rates, sizes, schedules)
def test_the_closed_form_is_the_walked_pipeline(
    wire_rate: float, digest_rate: float, size: int, schedule: Schedule
) -> None:
    wire = VerifiedWire(wire_rate, digest_rate)
    assert wire.transfer_ms(size, schedule) == pytest.approx(_walked_ms(wire, size, schedule))


@given(rates, rates, states, st.sampled_from([SEQUENTIAL, PIPELINED, TAIL]))
def test_the_rate_stays_between_its_bounds(
    wire_rate: float, digest_rate: float, state_bytes: int, schedule: Schedule
) -> None:
    wire = VerifiedWire(wire_rate, digest_rate)
    rate = wire.rate_bytes_per_s(state_bytes, schedule)
    assert wire.rate_min_bytes_per_s * (1 - 1e-9) <= rate <= wire.rate_max_bytes_per_s * (1 + 1e-9)


@given(rates, rates, states)
def test_sequential_meets_the_lower_bound(
    wire_rate: float, digest_rate: float, state_bytes: int
) -> None:
    wire = VerifiedWire(wire_rate, digest_rate)
    rate = wire.rate_bytes_per_s(state_bytes, SEQUENTIAL)
    assert rate == pytest.approx(wire.rate_min_bytes_per_s)


@given(rates, rates)
def test_the_bounds_agree_with_what_they_are_made_of(wire_rate: float, digest_rate: float) -> None:
    wire, swapped = VerifiedWire(wire_rate, digest_rate), VerifiedWire(digest_rate, wire_rate)
    assert wire.rate_max_bytes_per_s == swapped.rate_max_bytes_per_s
    # The parallel of two resistors: half the smaller at least, less than either.
    assert wire.rate_min_bytes_per_s == pytest.approx(swapped.rate_min_bytes_per_s)
    product = wire_rate * digest_rate
    assert wire.rate_min_bytes_per_s == pytest.approx(product / (wire_rate + digest_rate))
    assert wire.rate_max_bytes_per_s * (0.5 - 1e-9) <= wire.rate_min_bytes_per_s


@given(rates, rates, rates, states, st.sampled_from([SEQUENTIAL, PIPELINED, TAIL]))
def test_a_faster_engine_never_slows_a_transfer(
    wire_rate: float, one: float, other: float, state_bytes: int, schedule: Schedule
) -> None:
    slow, fast = sorted((one, other))
    slower = VerifiedWire(wire_rate, slow).transfer_ms(state_bytes, schedule)
    assert VerifiedWire(wire_rate, fast).transfer_ms(state_bytes, schedule) <= slower * (1 + 1e-9)


def test_placement_matters_in_the_papers_order() -> None:
    wire = VerifiedWire(97.95e9 / 8, 52.6e9)
    placements = (SEQUENTIAL, PIPELINED, TAIL)
    found = [wire.rate_bytes_per_s(1_670_124_960, schedule) for schedule in placements]
    assert all(before < after for before, after in pairwise(found))
    # All that a tail schedule leaves exposed is the digest of a granule: 20 microseconds here.
    assert wire.rate_max_bytes_per_s - found[-1] < 0.001 * wire.rate_max_bytes_per_s


@given(rates, rates)
def test_the_engine_keeps_up_with_k_star_wires_and_no_more(
    wire_rate: float, digest_rate: float
) -> None:
    wires_max = VerifiedWire(wire_rate, digest_rate).wires_max
    assert wires_max * wire_rate == pytest.approx(digest_rate)


@given(rates, st.floats(1e-6, 8.64e7), st.floats(0.0, 8.64e7))
def test_a_tail_takes_its_share_of_the_wall(
    wire_rate: float, wire_ms: float, tail_ms: float
) -> None:
    rate = rate_with_tail_bytes_per_s(wire_rate, wire_ms, tail_ms)
    assert rate * (wire_ms + tail_ms) == pytest.approx(wire_rate * wire_ms)
    assert rate <= wire_rate * (1 + 1e-9)
    assert rate_with_tail_bytes_per_s(wire_rate, wire_ms, 0.0) == pytest.approx(wire_rate)


def test_the_tail_law_is_a_pipeline_whose_engine_outruns_the_wire() -> None:
    chunk_bytes, state_bytes = 64 << 20, 20 * (64 << 20)
    wire = VerifiedWire(12e9, 50e9)
    wire_ms = state_bytes / 12e9 * 1e3
    tail_ms = chunk_bytes / 50e9 * 1e3
    law = rate_with_tail_bytes_per_s(12e9, wire_ms, tail_ms)
    assert wire.rate_bytes_per_s(state_bytes, PIPELINED) == pytest.approx(law)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, 0.5, 1e16])
def test_bad_rates_are_named(bad: float) -> None:
    for call, field in (
        (lambda: VerifiedWire(bad, 1.0), "wire_rate_bytes_per_s"),
        (lambda: VerifiedWire(1.0, bad), "digest_rate_bytes_per_s"),
        (lambda: rate_with_tail_bytes_per_s(bad, 1.0, 1.0), "wire_rate_bytes_per_s"),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.field == field


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 1e9])
def test_bad_durations_are_named(bad: float) -> None:
    for call, field in (
        (lambda: rate_with_tail_bytes_per_s(1.0, bad, 1.0), "wire_ms"),
        (lambda: rate_with_tail_bytes_per_s(1.0, 1.0, bad), "tail_ms"),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.field == field


def test_a_bad_size_is_named() -> None:
    with pytest.raises(InvalidInput) as caught:
        VerifiedWire(1.0, 1.0).transfer_ms(0, PIPELINED)
    assert caught.value.field == "state_bytes"
