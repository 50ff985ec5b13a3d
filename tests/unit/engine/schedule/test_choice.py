"""Choice: classes, deadlines, barriers, and who waits for whom."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.schedule.choice import Band, Choice, Idle, Wait, keeps, pick
from services.engine.schedule.claim import Claim
from services.engine.schedule.guard import Guard, headroom_s
from services.engine.schedule.wave import wave_floors
from tests.unit.engine.schedule.claims import C1, C2A, C2B, C3, C4, C5, claim

EXACT = Guard(overrun=0.0, handover_s=0.0)


def chosen(claims: list[Claim], now: float = 0.0, **how: object) -> str:
    choice = pick(claims, now, guard=EXACT, **how)
    assert isinstance(choice, Choice), choice
    return choice.session_id


def test_nobody_has_work() -> None:
    assert pick([], 5.0) == Idle(math.inf, Wait.NO_WORK)


def test_nothing_is_picked_before_its_release() -> None:
    early = claim("a", C1, release_at=7.0, deadline_at=8.0)
    assert pick([early], 6.9) == Idle(7.0, Wait.NOT_RELEASED)
    assert chosen([early], 7.0) == "a"


def test_ties_go_by_arrival_then_id() -> None:
    tied = [
        claim("b", deadline_at=9.0, arrived_at=2.0),
        claim("c", deadline_at=9.0, arrived_at=1.0),
        claim("a", deadline_at=9.0, arrived_at=2.0),
    ]
    assert chosen(tied) == "c"
    assert chosen([tied[0], tied[2]]) == "a"


def test_a_nearer_deadline_overtakes_at_the_next_quantum() -> None:
    running = claim("running", deadline_at=9.0, mid_block=True)
    assert chosen([running, claim("new", deadline_at=8.0, arrived_at=5.0)]) == "new"


@pytest.mark.parametrize("other", [C2A, C2B, C4, C5, C3])
def test_hard_work_that_has_no_time_to_lose_goes_first(other: object) -> None:
    hard = claim("hard", deadline_at=1.0, quantum_s=0.4, left_s=0.9)
    sooner = claim("other", other, deadline_at=0.5, quantum_s=0.2, left_s=0.2)
    assert chosen([hard, sooner]) == "hard"


@pytest.mark.parametrize("other", [C2A, C2B, C4, C5])
def test_a_nearer_soft_deadline_goes_first_where_hard_work_can_wait(other: object) -> None:
    hard = claim("hard", deadline_at=1.0, quantum_s=0.4, left_s=0.7)
    sooner = claim("other", other, deadline_at=0.5, quantum_s=0.2, left_s=0.2)
    later = sooner._replace(deadline_at=1.5)
    choice = pick([hard, sooner], 0.0, guard=EXACT)
    assert isinstance(choice, Choice)
    assert (choice.session_id, choice.band) == ("other", Band.SOFT)
    assert choice.headroom_s == pytest.approx(0.3)
    assert chosen([hard, later]) == "hard"


def test_bulk_never_goes_before_hard_or_soft_work() -> None:
    bulk = claim("bulk", C3, quantum_s=0.01)
    assert chosen([bulk, claim("hard", deadline_at=100.0, left_s=0.1)]) == "hard"
    assert chosen([bulk, claim("soft", C5, deadline_at=100.0)]) == "soft"


def test_the_engines_own_work_queues_with_bulk_and_is_hard_once_it_has_waited() -> None:
    own = claim("own", C5, arrived_at=2.0, quantum_s=0.2, left_s=0.2)
    assert chosen([own, claim("hard", deadline_at=100.0, left_s=0.1)]) == "hard"
    assert chosen([own, claim("soft", C5, deadline_at=100.0)]) == "soft"
    assert chosen([own, claim("bulk", C3, arrived_at=1.0)]) == "bulk"
    assert chosen([own, claim("bulk", C3, arrived_at=3.0)]) == "own"
    to_come = claim("hard", release_at=0.1, deadline_at=1.0, left_s=0.9, prospective=True)
    assert pick([own, to_come], 0.0).reason is Wait.GUARDED
    assert chosen([own._replace(mid_block=True, boundary_by=0.0), to_come]) == "own"


def test_bulk_goes_by_arrival_a_block_at_a_time() -> None:
    begun = claim("z", C3, arrived_at=1.0, mid_block=True)
    assert chosen([claim("a", C3, arrived_at=2.0), begun]) == "z"


def test_bulk_fills_what_is_left_before_a_release() -> None:
    """C1 has 0.3 s of work in a period of 0.4: what may overlap its release is 0.1 s."""
    coming = claim("hard", release_at=1.0, deadline_at=1.4, quantum_s=0.1, left_s=0.3)
    bulk = claim("bulk", C3, quantum_s=0.2)
    assert chosen([coming, bulk], 0.89) == "bulk"
    assert pick([coming, bulk], 0.91, guard=EXACT) == Idle(
        1.0, Wait.GUARDED, headroom_s([coming], 0.91, EXACT)
    )


def test_a_shorter_quantum_may_fit_where_the_first_does_not() -> None:
    coming = claim("hard", release_at=1.0, deadline_at=1.4, left_s=0.4)
    long = claim("long", C3, arrived_at=1.0, quantum_s=0.5)
    short = claim("short", C3, arrived_at=2.0, quantum_s=0.05)
    assert chosen([coming, long, short], 0.9) == "short"


def test_a_quantum_of_unknown_length_is_tried() -> None:
    coming = claim("hard", release_at=1.0, deadline_at=1.4, left_s=0.4)
    assert chosen([coming, claim("bulk", C3)], 0.9) == "bulk"


def test_time_is_kept_free_for_an_action_that_may_still_come() -> None:
    expected = claim("hard", release_at=1.0, deadline_at=1.4, left_s=0.4, prospective=True)
    bulk = claim("bulk", C3, quantum_s=0.2)
    assert isinstance(pick([expected, bulk], 0.9, guard=EXACT), Idle)
    assert pick([expected], 1.1, guard=EXACT) == Idle(math.inf, Wait.NO_WORK), "never picked"


def test_a_block_that_a_freeze_waits_for_gets_through_full_interactive_load() -> None:
    """The interactive session never rests; each of its blocks takes its whole period."""
    bulk = claim("bulk", C3, mid_block=True, quantum_s=0.1, left_s=0.1)
    for now in range(20):
        at = float(now)
        busy = claim("hard", C1, at, at + 1.0, at, mid_block=True, quantum_s=0.25, left_s=1.0)
        assert chosen([busy, bulk], at) == "hard"
        waited_for = bulk._replace(boundary_by=5.5)
        assert (chosen([busy, waited_for], at) == "bulk") == (at >= 5.0)


def test_a_boundary_is_only_waited_for_in_mid_block() -> None:
    between = claim("bulk", C3, boundary_by=0.1, quantum_s=0.3)
    assert not between.hard
    assert between.due_at == math.inf, "it is at its boundary, and may wait there"
    assert chosen([between, claim("hard", deadline_at=1.0, left_s=0.9)]) == "hard"


def test_replays_run_in_the_order_they_were_asked_for() -> None:
    first = claim("first", C4, arrived_at=1.0, deadline_at=90.0, quantum_s=0.5)
    second = claim("second", C4, arrived_at=2.0, deadline_at=3.0, quantum_s=0.1)
    assert chosen([second, first], 2.5) == "first", "a nearer deadline does not overtake"


def test_a_wave_goes_block_by_block() -> None:
    def member(name: str, block_index: int) -> Claim:
        return claim(name, C2B, deadline_at=9.0, block_index=block_index, wave_id="w")

    ahead, behind = member("ahead", 4), member("behind", 3)
    floors = wave_floors([("w", 4), ("w", 3), ("", 0), ("v", 1)])
    assert floors == {"w": 3, "v": 1}
    assert chosen([ahead, behind], floors=floors) == "behind"
    waiting = pick([ahead], 0.0, floors=floors)
    assert waiting == Idle(math.inf, Wait.BARRIER)
    assert chosen([ahead], floors=wave_floors([("w", 4)])) == "ahead", "the other one left"
    begun = ahead._replace(mid_block=True)
    assert chosen([begun], floors=floors) == "ahead", "what has begun goes to its boundary"


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_no_member_is_ever_a_block_ahead(leaves_after: list[int], order: object) -> None:
    """Members leave after so many blocks of the wave; nobody is ever held up by who left."""
    done = dict.fromkeys(map(str, range(len(leaves_after))), 0)
    here = {name for name, leaves in zip(done, leaves_after, strict=True) if leaves > 0}
    while here:
        claims = [
            claim(name, C2B, deadline_at=9.0, block_index=done[name], wave_id="w") for name in here
        ]
        order.shuffle(claims)
        choice = pick(claims, 0.0, floors=wave_floors(("w", done[name]) for name in here))
        assert isinstance(choice, Choice), "somebody can always go on"
        done[choice.session_id] += 1
        assert max(done[name] for name in here) - min(done[name] for name in here) <= 1
        here -= {n for n in here if done[n] == leaves_after[int(n)]}
    assert list(done.values()) == leaves_after


times = st.floats(0, 10, allow_nan=False)
claims_of_all_classes = st.lists(
    st.builds(
        Claim,
        session_id=st.uuids().map(str),
        service_class=st.sampled_from([C1, C2A, C2B, C3, C4, C5]),
        release_at=times,
        deadline_at=st.one_of(times, st.just(math.inf)),
        arrived_at=times,
        mid_block=st.booleans(),
        quantum_s=st.floats(0, 2),
        left_s=st.floats(0, 4),
        boundary_by=st.one_of(times, st.just(math.inf)),
        prospective=st.booleans(),
        period_s=st.one_of(st.just(0.0), st.floats(1e-9, 3)),
        block_s=st.floats(0, 2),
        block_index=st.just(0),
        wave_id=st.just(""),
    ),
    max_size=12,
)


@given(claims_of_all_classes, times, st.randoms(use_true_random=False))
def test_the_choice_is_a_function_of_what_is_claimed(
    claims: list[Claim], now: float, order: object
) -> None:
    first = pick(claims, now)
    order.shuffle(claims)
    assert pick(claims, now) == first


@given(claims_of_all_classes, times)
def test_rules_of_every_choice(claims: list[Claim], now: float) -> None:
    guard = Guard()
    runnable = [each for each in claims if each.release_at <= now and not each.prospective]
    headroom = headroom_s(claims, now, guard)
    choice = pick(claims, now, guard=guard)
    if isinstance(choice, Idle):
        # Work is conserved wherever the guard does not forbid it; hard work is never held back.
        assert not any(each.hard for each in runnable)
        assert not any(
            guard.allows(each.quantum_s, headroom)
            for each in runnable
            if each.service_class is not C4
        )
        coming = [each.release_at for each in claims if each.release_at > now]
        assert choice.until == min(coming, default=math.inf)
        return
    assert choice.claim in runnable
    if choice.band is Band.HARD:
        hard = [each for each in runnable if each.hard]
        assert choice.claim.rank == min(each.rank for each in hard)
    else:
        assert guard.allows(choice.claim.quantum_s, headroom)
    if choice.band is Band.BULK:
        assert not any(each.hard for each in runnable)


@given(claims_of_all_classes, times, st.data())
def test_what_a_session_keeps_no_measured_time_takes_from_it(
    claims: list[Claim], now: float, data: st.DataObject
) -> None:
    keeping = [each.session_id for each in claims if keeps(each.session_id, claims, now)]
    choice = pick(claims, now)
    if not keeping:
        assert isinstance(choice, Idle) or choice.headroom_s < math.inf
        return
    seconds = st.floats(0, 100)
    others = [
        each._replace(quantum_s=quantum_s, left_s=left_s, block_s=block_s)
        for each in claims
        for quantum_s, left_s, block_s in [data.draw(st.tuples(seconds, seconds, seconds))]
    ]
    for guard in (Guard(), Guard(overrun=3.0, handover_s=1.0)):
        found = pick(others, now, guard=guard)
        assert isinstance(found, Choice)
        assert [found.session_id] == keeping


def test_hard_work_is_kept_before_soft_work_that_is_due_later() -> None:
    hard = claim("hard", deadline_at=1.0, quantum_s=0.4, left_s=0.9, mid_block=True)
    later = claim("later", C2A, deadline_at=2.0, quantum_s=0.2)
    sooner = claim("sooner", C2A, deadline_at=0.5, quantum_s=0.2)
    assert keeps("hard", [hard, later], 0.0)
    assert not keeps("hard", [hard, later, sooner], 0.0), "whether it fits is a matter of seconds"
    assert not keeps("later", [hard, later], 0.0)


def test_bulk_is_kept_while_there_is_no_hard_work_at_all() -> None:
    bulk = claim("bulk", C3, quantum_s=0.2, mid_block=True)
    behind = claim("behind", C3, arrived_at=1.0)
    to_come = claim("to come", release_at=9.0, deadline_at=10.0, left_s=0.9, prospective=True)
    assert keeps("bulk", [bulk, behind], 1.0)
    assert not keeps("bulk", [bulk, behind, to_come], 1.0)
    assert not keeps("bulk", [], 1.0)


def test_a_release_ends_what_is_kept() -> None:
    late = claim("late", deadline_at=9.0, mid_block=True)
    soon = claim("soon", release_at=2.0, deadline_at=3.0)
    assert keeps("late", [late, soon], 1.9)
    assert not keeps("late", [late, soon], 2.0)
