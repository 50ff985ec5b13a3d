"""What an admission that has restarted is told: decided from values."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from services.placement.phases import MovePhase, Step
from services.placement.records import PathRecord
from services.placement.relearn import (
    PATH_AGE_MAX_MS,
    STRANGER_MARGIN_MS,
    OwnMove,
    WireSeen,
    holds_wire,
    relearn_request,
    what_runs,
)
from services.placement.values import Ticket
from tests.unit.placement.makers import entry
from worldline.v1 import admission_pb2

NONE: frozenset[str] = frozenset()


def own(name: str = "m", age_ms: float = 0.0, **changes: object) -> OwnMove:
    ticket = Ticket(f"t-{name}", valid_for_ms=1_000, lease_ms=500, horizon_ms=400.0)
    move = entry(name, **{"phase": MovePhase.ADMITTED, "ticket": ticket, **changes}).move
    return OwnMove(move, extent_bytes=100, age_ms=age_ms)


def wire(name: str, remaining_ms: int = 70, extent_bytes: int = 64) -> WireSeen:
    return WireSeen(f"t-{name}", name, "n1", "n2", remaining_ms, extent_bytes)


def test_an_own_move_is_told_with_all_that_is_known_of_it() -> None:
    (told,) = what_runs([own()], NONE, [])
    assert told.to_proto("h2") == admission_pb2.RelearnRequest.RunningMove(
        ticket_id="t-m",
        move_id="m",
        session_id="s",
        epoch=1,
        source_node_id="n1",
        target_node_id="n2",
        target_engine_id="e2",
        target_host_id="h2",
        extent_bytes=100,
        # Valid, its horizon, and its lease twice: until the go and from it.
        remaining_ms=1_000 + 400 + 2 * 500,
    )


def test_a_tickets_age_is_deducted_where_it_is_known() -> None:
    assert what_runs([own(age_ms=300.0)], NONE, [])[0].remaining_ms == 2_100
    # One that outlived its ticket while it rolls back holds its slot still.
    assert what_runs([own(age_ms=1e9)], NONE, [])[0].remaining_ms == 1


def test_only_moves_for_which_admission_holds_something() -> None:
    finish = frozenset({(Step.FINISH_TICKET, 1)})
    silent = [
        own("a", ticket=None, phase=MovePhase.REQUESTED),
        own("b", issued=finish, phase=MovePhase.COMMITTED),
        own("c", issued=finish, phase=MovePhase.ROLLING_BACK),
    ]
    assert what_runs(silent, NONE, []) == ()
    assert not any(holds_wire(one.move) for one in silent)
    loud = [own("d", phase=MovePhase.COMMITTED), own("e", phase=MovePhase.ROLLING_BACK)]
    assert [one.move_id for one in what_runs(loud, NONE, [])] == ["d", "e"]


def test_a_strangers_wire_is_told_once_with_the_longer_time() -> None:
    """Both ends report it; what neither says stays empty."""
    wires = [wire("probe-1", 70), wire("probe-1", 90, 8), wire("probe-1", 80)]
    (told,) = what_runs([], NONE, wires)
    assert (told.ticket_id, told.move_id) == ("t-probe-1", "probe-1")
    assert (told.session_id, told.epoch, told.target_engine_id, told.extent_bytes) == ("", 0, "", 8)
    assert told.remaining_ms == 90 + STRANGER_MARGIN_MS


def test_a_wire_of_an_own_move_is_no_strangers() -> None:
    """Not even where its end is told already, or where it ended while the movers were asked."""
    finish = frozenset({(Step.FINISH_TICKET, 1)})
    moves = [own("a"), own("b", issued=finish)]
    wires = [wire("a", 10**9), wire("b"), wire("c"), wire("d")]
    told = what_runs(moves, frozenset({"a", "b", "c"}), wires)
    assert [one.move_id for one in told] == ["a", "d"]
    assert told[0].remaining_ms == 2_400


moves = st.lists(st.sampled_from("abcdef"), unique=True)


@given(moves, moves, st.lists(st.sampled_from("abcdef")), st.data())
def test_every_ticket_once_and_none_is_lost(
    mine: list[str], ended: list[str], seen: list[str], data: st.DataObject
) -> None:
    known = frozenset(mine) | frozenset(ended)
    told = what_runs([own(name) for name in mine], known, [wire(name) for name in seen])
    names = [one.move_id for one in told]
    assert sorted(names) == sorted(set(names))
    assert set(names) == set(mine) | (set(seen) - known)
    shuffled = data.draw(st.permutations(seen))
    assert what_runs([own(name) for name in mine], known, [wire(name) for name in shuffled]) == told


def test_paths_are_told_with_their_age() -> None:
    path = PathRecord("n1", "n2", 5e9, 7.5, samples=12, changed_unix_s=1_000.0)
    old = replace(path, target_node_id="n4", changed_unix_s=1_060.4 - PATH_AGE_MAX_MS / 1e3)
    ahead = replace(path, target_node_id="n3", changed_unix_s=2_000.0)
    (running,) = what_runs([own()], NONE, [])
    request = relearn_request([running], [path, old, ahead], {"n2": "h2"}, unix_s=1_060.5)
    assert list(request.paths) == [
        admission_pb2.PathRate(
            source_node_id="n1",
            target_node_id="n2",
            rate_bytes_per_s=5e9,
            setup_ms=7.5,
            samples=12,
            age_ms=60_500,
        ),
        # A wall clock that was set back makes nothing younger than now.
        admission_pb2.PathRate(
            source_node_id="n1",
            target_node_id="n3",
            rate_bytes_per_s=5e9,
            setup_ms=7.5,
            samples=12,
            age_ms=0,
        ),
    ]
    assert request.moves[0].target_host_id == "h2"
    assert relearn_request([running], [], {}, 0.0).moves[0].target_host_id == ""
