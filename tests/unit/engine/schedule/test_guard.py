"""Guard: nothing that starts beside hard work makes it late, and deadlines that can be kept are."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.engine.schedule.choice import Band, Idle, pick
from services.engine.schedule.claim import Claim
from services.engine.schedule.guard import Guard, headroom_s, slack_s
from tests.unit.engine.schedule.claims import C1, C2A, C3, claim
from worldline.errors import InvalidInput

EXACT = Guard(overrun=0.0, handover_s=0.0)
positive = st.floats(1e-3, 2)


@pytest.mark.parametrize("margin", [-0.1, math.inf, math.nan])
def test_margins_are_not_negative(margin: float) -> None:
    for name in ("overrun", "handover_s"):
        with pytest.raises(InvalidInput) as refused:
            Guard(**{name: margin})
        assert refused.value.field == name


def test_headroom_is_the_least_over_all_deadlines() -> None:
    tight = claim("tight", deadline_at=1.0, left_s=0.4)
    wide = claim("wide", deadline_at=5.0, left_s=0.5)
    heavy = claim("heavy", deadline_at=2.0, left_s=1.3)
    assert headroom_s([], 0.0, EXACT) == math.inf
    assert headroom_s([claim("soft", C2A, deadline_at=1.0, left_s=9.0)], 0.0, EXACT) == math.inf
    assert headroom_s([wide, tight], 0.0, EXACT) == pytest.approx(0.6)
    assert headroom_s([wide, tight, heavy], 0.0, EXACT) == pytest.approx(0.3)
    assert headroom_s([tight], 0.9, EXACT) == pytest.approx(-0.3), "it will be late"


def test_slack_counts_what_is_due_before_and_what_must_still_fit_after() -> None:
    mine = claim("mine", deadline_at=2.0, left_s=9.0)
    before = claim("before", deadline_at=1.0, left_s=0.5)
    after = claim("after", deadline_at=2.5, left_s=1.5)
    assert slack_s(mine, [mine], 0.0, EXACT) == pytest.approx(2.0)
    assert slack_s(mine, [mine, before], 0.0, EXACT) == pytest.approx(1.5)
    assert slack_s(mine, [mine, before, after], 0.0, EXACT) == pytest.approx(0.5)
    assert slack_s(claim("bulk", C3), [mine], 0.0, EXACT) == math.inf


@given(positive, st.floats(-2, 2), st.floats(0, 2), st.floats(0, 1))
def test_more_headroom_never_makes_the_band_wider(
    quantum_s: float, headroom: float, more_s: float, overrun: float
) -> None:
    guard = Guard(overrun)
    band_s = guard.band_s(quantum_s, 1.0, headroom)
    assert guard.band_s(quantum_s, 1.0, headroom + more_s) <= band_s
    assert Guard(overrun + 0.1).band_s(quantum_s, 1.0, headroom) >= band_s
    if guard.allows(quantum_s, headroom):
        assert guard.allows(quantum_s, headroom + more_s)


@given(positive, st.floats(-2, 2), st.floats(0, 2))
def test_the_band_is_another_word_for_the_headroom(
    quantum_s: float, headroom: float, to_release_s: float
) -> None:
    """A quantum may start if it is expected to end before the release less the band."""
    guard = Guard()
    before_band = quantum_s <= to_release_s - guard.band_s(quantum_s, to_release_s, headroom)
    if abs(guard.bound_s(quantum_s) - headroom) > 1e-9:
        assert before_band == guard.allows(quantum_s, headroom)


@given(
    quanta=st.integers(1, 4),
    quantum_s=st.floats(0.05, 0.2),
    spare=st.floats(1.06, 2.0),
    bulk_s=st.floats(0.01, 0.5),
    jitter=st.lists(st.floats(0, 1), min_size=8, max_size=8),
)
def test_bulk_never_overlaps_a_release_by_more_than_the_block_there_can_wait(
    quanta: int, quantum_s: float, spare: float, bulk_s: float, jitter: list[float]
) -> None:
    """One C1 whose period holds its block; every quantum takes up to its bound."""
    guard = Guard(overrun=0.05, handover_s=0.0)
    period_s = quanta * quantum_s * spare
    lateness_max = period_s - guard.bound_s(quanta * quantum_s) + 1e-9
    now, release_at, left, draws = 0.0, 0.0, quanta, 0
    while release_at < 40 * period_s:
        interactive = claim(
            "c1", C1, release_at, release_at + period_s, quantum_s=quantum_s,
            left_s=left * quantum_s, mid_block=left < quanta,
        )  # fmt: skip
        choice = pick([interactive, claim("c3", C3, quantum_s=bulk_s)], now, guard=guard)
        if isinstance(choice, Idle):
            now = choice.until
            continue
        took_s = choice.claim.quantum_s * (1 + 0.05 * jitter[draws % 8])
        draws += 1
        now += took_s
        if choice.band is Band.BULK:
            assert now - release_at <= lateness_max
            continue
        left -= 1
        if left == 0:
            assert now <= release_at + period_s + 1e-9, "late for bulk's sake"
            release_at, left = release_at + period_s, quanta


jobs_in_ticks = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 4), st.integers(1, 10)), min_size=1, max_size=6
).map(lambda jobs: [(release, work, release + span) for release, work, span in jobs])


def _feasible(jobs: list[tuple[int, int, int]]) -> bool:
    """Processor demand over every interval from a release to a deadline."""
    return all(
        sum(w for r, w, d in jobs if r >= begin and d <= end) <= end - begin
        for begin, _, _ in jobs
        for _, _, end in jobs
        if end > begin
    )


def _play(jobs: list[tuple[int, int, int]], bulk_ticks: int) -> tuple[bool, int]:
    """Quanta of one tick each; whether all hard jobs were in time, and the bulk quanta run."""
    left = {str(number): work for number, (_, work, _) in enumerate(jobs)}
    now, in_time, bulk = 0.0, True, 0
    while any(left.values()):
        claims = [
            claim(str(n), C1, r, d, quantum_s=1.0, left_s=float(left[str(n)]))
            for n, (r, _, d) in enumerate(jobs)
            if left[str(n)]
        ]
        if bulk_ticks:
            claims.append(claim("bulk", C3, quantum_s=float(bulk_ticks)))
        choice = pick(claims, now, guard=EXACT)
        if isinstance(choice, Idle):
            now = choice.until
        elif choice.band is Band.BULK:
            now, bulk = now + bulk_ticks, bulk + 1
        else:
            now, name = now + 1, choice.session_id
            left[name] -= 1
            in_time &= left[name] > 0 or now <= jobs[int(name)][2]
    return in_time, bulk


@given(jobs_in_ticks)
def test_every_deadline_that_can_be_kept_is(jobs: list[tuple[int, int, int]]) -> None:
    """EDF is optimal: it is in time exactly where the demand fits (Baruah et al. 1990)."""
    assert _play(jobs, bulk_ticks=0)[0] == _feasible(jobs)


@given(jobs_in_ticks, st.integers(1, 5))
def test_bulk_beside_many_hard_sessions_makes_none_late(
    jobs: list[tuple[int, int, int]], bulk_ticks: int
) -> None:
    assert _play(jobs, bulk_ticks)[0] == _feasible(jobs)


sessions_in_ticks = st.lists(
    st.tuples(st.sampled_from([4, 5, 6, 8, 10, 12, 20]), st.integers(1, 8), st.integers(0, 20)),
    min_size=1,
    max_size=4,
).filter(lambda sessions: sum(work / period for period, work, _ in sessions) <= 0.95)


def _blocks_late(sessions: list[tuple[int, int, int]], bulk_ticks: int) -> int:
    """Sessions with periods, quanta of one tick; how many blocks of them were late."""
    released = [offset for _, _, offset in sessions]
    left = [work for _, work, _ in sessions]
    now, late = 0.0, 0
    while now < 200:
        claims = [
            claim(
                str(n), C1, released[n], released[n] + period, released[n],
                mid_block=left[n] < work, quantum_s=1.0, left_s=float(left[n]),
                period_s=float(period), block_s=float(work),
            )
            for n, (period, work, _) in enumerate(sessions)
        ]  # fmt: skip
        if bulk_ticks:
            claims.append(claim("bulk", C3, quantum_s=float(bulk_ticks)))
        choice = pick(claims, now, guard=EXACT)
        if isinstance(choice, Idle):
            now = choice.until
            continue
        now += choice.claim.quantum_s
        if choice.band is Band.BULK:
            continue
        n = int(choice.session_id)
        left[n] -= 1
        if left[n] == 0:
            late += now > released[n] + sessions[n][0]
            released[n], left[n] = released[n] + sessions[n][0], sessions[n][1]
    return late


@given(sessions_in_ticks, st.integers(1, 6))
@example([(10, 4, 1), (6, 3, 15)], 6)
@example([(4, 1, 6), (10, 5, 11)], 6)
def test_bulk_beside_unlike_periods_makes_no_block_late(
    sessions: list[tuple[int, int, int]], bulk_ticks: int
) -> None:
    """A short period asks several times before a long one's deadline: all of them count."""
    assert _blocks_late(sessions, bulk_ticks) <= _blocks_late(sessions, 0)


def test_bulk_is_not_held_back_for_nothing() -> None:
    assert _play([(10, 2, 14)], bulk_ticks=3) == (True, 4), "12 ticks, two of them the job's slack"


def test_unmeasured_work_reserves_nothing() -> None:
    coming = Claim("c1", C1, 1.0, 1.4, 0.0)
    assert headroom_s([coming], 0.9, Guard()) == pytest.approx(0.5)
