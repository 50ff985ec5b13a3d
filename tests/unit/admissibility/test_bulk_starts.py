"""Interactive first: any schedule of interactive moves, and bulk goes on wherever it can."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldline.admissibility.bulk.move import BulkMove
from worldline.admissibility.bulk.plan import BulkPlan, Discipline, plan_bulk
from worldline.admissibility.bulk.starts import Starts, UnderWay, WaitReason, decide_starts
from worldline.errors import InvariantBroken

from .bulk_builders import BYTE_A_MS, Pair, build, carry_out, pairs

NODES = 6


@dataclass
class Interactive:
    """Wants two nodes from `asks_at` on, runs for `ticks` once it has them."""

    nodes: frozenset[str]
    asks_at: int
    ticks: int
    ends_at: int | None = None


windows = st.lists(
    st.builds(
        lambda pair, asks_at, ticks: Interactive(
            frozenset(f"node-{number}" for number in pair), asks_at, ticks
        ),
        st.sets(st.integers(0, NODES - 1), min_size=2, max_size=2),
        st.integers(0, 30),
        st.integers(1, 8),
    ),
    max_size=8,
)


def _plan(ends: list[Pair], sizes: list[int], discipline: Discipline) -> BulkPlan:
    return replace(plan_bulk(build(ends, sizes), BYTE_A_MS), discipline=discipline)


def _check(plan: BulkPlan, starts: Starts, taken: set[str], interactive: set[str]) -> None:
    """`taken` are the nodes of running bulk moves."""
    busy = taken | interactive
    started = [node_id for move in starts.start for node_id in move.node_ids]
    next_in_line = [node_id for move in starts.ahead for node_id in move.node_ids]
    assert len(set(next_in_line)) == len(next_in_line)
    assert set(next_in_line).isdisjoint(interactive)
    assert set(next_in_line).isdisjoint(started)
    for move in starts.ahead:
        assert taken & set(move.node_ids)
        assert plan.discipline is Discipline.ROUNDS
    taken = taken | set(next_in_line)
    busy |= taken
    assert len(set(started)) == len(started)
    assert busy.isdisjoint(started)
    free = [m for m, _ in starts.wait if busy.isdisjoint(m.node_ids)]
    idle = [m for m in free if set(started).isdisjoint(m.node_ids)]
    waiting = (move for move, _ in starts.wait)
    pending = {move.move_id for move in (*starts.start, *starts.ahead, *waiting)}
    current = next((r for r in plan.rounds if any(m.move_id in pending for m in r)), ())
    assert not set(current) & set(free), "the current round goes on wherever its nodes are free"
    if plan.discipline is Discipline.LIST:
        assert not idle, "no node idles that a move could use"
    if free and not taken:
        assert starts.start, "where no bulk move runs and nodes are free, one starts"
    for move, reason in starts.wait:
        _check_reason(move, reason, starts, taken | set(started), interactive)


def _check_reason(
    move: BulkMove, reason: WaitReason, starts: Starts, taken: set[str], interactive: set[str]
) -> None:
    nodes = set(move.node_ids)
    assert (reason is WaitReason.INTERACTIVE) == bool(nodes & interactive)
    if reason is WaitReason.BULK:
        assert nodes & taken
    if reason is WaitReason.ROUND:
        waiting = [other for other, _ in starts.wait]
        earlier = starts.wait[: waiting.index(move)]
        assert any(
            nodes & set(other.node_ids) and why is not WaitReason.INTERACTIVE
            for other, why in earlier
        )


@settings(deadline=None)
@given(
    pairs(NODES, 15),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    windows,
    st.sampled_from(Discipline),
)
def test_any_schedule(
    ends: list[Pair], sizes: list[int], asked: list[Interactive], discipline: Discipline
) -> None:
    plan = _plan(ends, sizes, discipline)
    # Hypothesis may use one object twice: each gets its own here.
    interactive = [replace(window) for window in asked]
    begun: set[str] = set()
    ends_at: dict[str, int] = {}
    for now in range(1_000):
        running = [m for m in plan.moves if ends_at.get(m.move_id, 0) > now]
        taken = {node for move in running for node in move.node_ids}
        _begin_interactive(interactive, taken, now)
        wanted = {node for window in _pending(interactive, now) for node in window.nodes}
        starts = decide_starts(plan, begun, _wired(running), wanted)
        _check(plan, starts, taken, wanted)
        for move in starts.start:
            begun.add(move.move_id)
            ends_at[move.move_id] = now + move.state_bytes
        over = now > 30 and not _pending(interactive, now)
        if over and len(begun) == len(plan.moves):
            return
    pytest.fail("it never ends")


def _wired(moves: Iterable[BulkMove]) -> list[UnderWay]:
    return [UnderWay(move, wired=True) for move in moves]


def _pending(interactive: list[Interactive], now: int) -> list[Interactive]:
    """Those that run or want to."""
    return [w for w in interactive if w.asks_at <= now and (w.ends_at is None or w.ends_at > now)]


def _begin_interactive(interactive: list[Interactive], taken: set[str], now: int) -> None:
    busy = taken | {
        node for w in _pending(interactive, now) if w.ends_at is not None for node in w.nodes
    }
    for window in _pending(interactive, now):
        if window.ends_at is None and busy.isdisjoint(window.nodes):
            window.ends_at = now + window.ticks
            busy |= window.nodes


@settings(deadline=None)
@given(pairs(NODES, 25), st.sampled_from(Discipline))
def test_a_node_that_is_never_free_stops_its_own_moves_only(
    ends: list[Pair], discipline: Discipline
) -> None:
    plan = _plan(ends, [1], discipline)
    begun: set[str] = set()
    while starts := decide_starts(plan, begun, (), {"node-0"}).start:
        begun |= {move.move_id for move in starts}
    left = [move for move in plan.moves if move.move_id not in begun]
    assert left == [move for move in plan.moves if "node-0" in move.node_ids]


def test_a_round_keeps_its_nodes_from_later_ones_and_a_list_does_not() -> None:
    """0-1 runs, so that 1-2 of the next round waits; 2-3 of the last would take node 2 from it."""
    first, second, third = build([(0, 1), (1, 2), (2, 3)])
    rounds = BulkPlan(((first,), (second,), (third,)), Discipline.ROUNDS, 3, 2)
    begun, running = {first.move_id}, _wired([first])
    starts = decide_starts(rounds, begun, running, ())
    assert starts.start == starts.ahead == ()
    assert starts.wait == ((second, WaitReason.BULK), (third, WaitReason.ROUND))
    listed = replace(rounds, discipline=Discipline.LIST)
    assert decide_starts(listed, begun, running, ()).start == (third,)
    # An interactive move at node 1 may last: node 2 is not kept idle for it.
    starts = decide_starts(rounds, begun, (), {"node-1"})
    assert starts.start == (third,)
    assert starts.wait == ((second, WaitReason.INTERACTIVE),)


def test_a_failed_move_is_tried_again() -> None:
    (move,) = build([(0, 1)])
    plan = plan_bulk([move], BYTE_A_MS)
    assert decide_starts(plan, {move.move_id}, (), ()) == Starts((), (), ())
    assert decide_starts(plan, (), (), ()) == Starts((move,), (), ())


def test_the_next_move_of_a_node_is_asked_for_once_the_one_before_has_its_wire() -> None:
    first, second, third = build([(0, 1), (0, 2), (0, 3)])
    plan = BulkPlan(((first,), (second,), (third,)), Discipline.ROUNDS, 3, 3)
    begun = {first.move_id}
    # Before, whichever were ready first would go first.
    starts = decide_starts(plan, begun, [UnderWay(first, wired=False)], ())
    assert starts.wait == ((second, WaitReason.BULK), (third, WaitReason.BULK))
    starts = decide_starts(plan, begun, _wired([first]), ())
    assert starts == Starts((), (second,), ((third, WaitReason.BULK),))
    both = [*_wired([first]), UnderWay(second, wired=False)]
    assert not decide_starts(plan, {*begun, second.move_id}, both, ()).ahead
    assert not decide_starts(plan, begun, _wired([first]), {"node-0"}).ahead


def test_what_could_get_its_wire_beside_the_one_before_is_not_asked_for_ahead() -> None:
    """A node that receives could send at once: movers keep the two ways apart for a pair only."""
    into, out_of = build([(0, 1), (1, 2)])
    plan = BulkPlan(((into,), (out_of,)), Discipline.ROUNDS, 2, 2)
    starts = decide_starts(plan, {into.move_id}, _wired([into]), ())
    assert starts.wait == ((out_of, WaitReason.BULK),)


def test_a_third_move_at_a_node_is_an_error() -> None:
    moves = build([(0, 1), (0, 2), (0, 3)])
    with pytest.raises(InvariantBroken, match="node-0"):
        decide_starts(plan_bulk(moves, BYTE_A_MS), (), _wired(moves), ())


lags = st.lists(st.floats(0, 1), min_size=1, max_size=7)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(3, 7)), min_size=1, max_size=20),
    lags,
)
def test_of_all_lags_of_a_drain_only_the_first_is_paid(ends: list[Pair], lag: list[float]) -> None:
    """Moves of one size, nodes that only send or only receive, and lags below a move's time."""
    moves = build(ends, [10])
    plan = plan_bulk(moves, BYTE_A_MS)
    of = {move.move_id: 10 * lag[index % len(lag)] for index, move in enumerate(moves)}
    makespan_ms = carry_out(plan, lambda _: 10.0, lambda move: of[move.move_id])
    assert makespan_ms <= 10 * len(plan.rounds) + max(of.values()) + 1e-6


@settings(deadline=None)
@given(pairs(NODES, 20), lags, st.sampled_from(Discipline))
def test_no_two_wires_meet_at_a_node_whatever_the_lags(
    ends: list[Pair], lag: list[float], discipline: Discipline
) -> None:
    """The clock's own assertions; and every move is made."""
    moves = build(ends, [3, 1, 2])
    of = {move.move_id: 5 * lag[index % len(lag)] for index, move in enumerate(moves)}
    carry_out(
        replace(plan_bulk(moves, BYTE_A_MS), discipline=discipline),
        lambda move: float(move.state_bytes),
        lambda move: of[move.move_id],
    )
