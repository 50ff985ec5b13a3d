"""Schedules: every byte in one chunk, and the mover's own plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.mover.chunking import ChunkPlan
from worldline.admissibility.schedule import ChunkRun, Schedule, VerificationPlacement
from worldline.errors import InvalidInput

GRANULE = 4
#: Of a few hundred bytes and up to forty chunks, so that every edge is met.
sizes = st.integers(1, 700)
granules = st.integers(1, 9)
schedules = st.builds(
    lambda placement, count: Schedule(placement, count * GRANULE, GRANULE),
    st.sampled_from(VerificationPlacement),
    granules,
)


def _chunks(schedule: Schedule, state_bytes: int) -> list[int]:
    return [run.chunk_bytes for run in schedule.runs(state_bytes) for _ in range(run.chunks)]


def test_schedules_by_hand() -> None:
    assert _chunks(Schedule(VerificationPlacement.SEQUENTIAL, 16, 4), 37) == [37]
    assert _chunks(Schedule(VerificationPlacement.PIPELINED, 16, 4), 37) == [16, 16, 5]
    assert _chunks(Schedule(VerificationPlacement.PIPELINED, 16, 4), 32) == [16, 16]
    assert _chunks(Schedule(VerificationPlacement.TAIL, 16, 4), 37) == [16, 12, 8, 1]
    assert Schedule(VerificationPlacement.PIPELINED, 16, 4).runs(37)[0] == ChunkRun(2, 16)


@given(schedules, st.integers(1, 2**63 - 1))
def test_the_runs_add_up_to_the_state(schedule: Schedule, state_bytes: int) -> None:
    runs = schedule.runs(state_bytes)
    assert sum(run.run_bytes for run in runs) == state_bytes
    assert all(run.chunks > 0 and run.chunk_bytes > 0 for run in runs)


@given(schedules, sizes)
def test_only_a_sequential_schedule_has_more_than_a_chunk_in_one_piece(
    schedule: Schedule, state_bytes: int
) -> None:
    chunks = _chunks(schedule, state_bytes)
    if schedule.placement is VerificationPlacement.SEQUENTIAL:
        assert chunks == [state_bytes]
    else:
        assert max(chunks) <= schedule.chunk_bytes


@given(granules, sizes)
def test_a_tail_schedule_ends_in_one_granule_or_less(chunk_granules: int, size: int) -> None:
    schedule = Schedule(VerificationPlacement.TAIL, chunk_granules * GRANULE, GRANULE)
    chunks = _chunks(schedule, size)
    assert chunks[-1] <= GRANULE
    assert chunks == sorted(chunks, reverse=True)


@given(granules, sizes, st.booleans())
def test_the_mover_cuts_the_same_chunks(chunk_granules: int, size: int, tapered: bool) -> None:
    chunk_bytes = chunk_granules * GRANULE
    placement = VerificationPlacement.TAIL if tapered else VerificationPlacement.PIPELINED
    plan = ChunkPlan(size, chunk_bytes, GRANULE, tapered=tapered)
    chunks = _chunks(Schedule(placement, chunk_bytes, GRANULE), size)
    assert chunks == [chunk.size_bytes for chunk in plan]


@pytest.mark.parametrize(
    ("chunk_bytes", "granule_bytes", "field"),
    [
        (4, 0, "granule_bytes"),
        (4, 1.5, "granule_bytes"),
        (0, 4, "chunk_bytes"),
        (3, 4, "chunk_bytes"),
        (6, 4, "chunk_bytes"),
        (2**63, 4, "chunk_bytes"),
    ],
)
def test_a_bad_schedule_is_named(chunk_bytes: int, granule_bytes: int, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Schedule(VerificationPlacement.PIPELINED, chunk_bytes, granule_bytes)
    assert caught.value.field == field


@pytest.mark.parametrize("placement", VerificationPlacement)
@pytest.mark.parametrize("bad", [0, -1, 2**63, 1.5])
def test_a_bad_size_is_named(placement: VerificationPlacement, bad: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        Schedule(placement).runs(bad)
    assert caught.value.field == "state_bytes"
