"""Beginning of a move: whether a session can move now, and the move to the best target. Pure."""

from __future__ import annotations

from dataclasses import replace

from services.placement.choose import MoveWish
from services.placement.fleet import Fleet
from services.placement.move import Move
from services.placement.phases import Goal, MovePhase
from services.placement.records import MoveEntry, SessionRecord, SessionState
from services.placement.shortlist import Shortlist
from services.placement.targets import Target
from services.placement.values import Party
from worldline.errors import Conflict, InvalidInput
from worldline.verdict import Verdict

#: What to do about a session that is in no slot, or not in one to stay.
_SUSPENSIONS = {
    SessionState.SUSPENDING.value: "wait for the end of that",
    SessionState.SUSPENDED.value: "resume it first (`worldline resume`, or Session.resume)",
    SessionState.RESUMING.value: "wait for the end of that",
}
#: The target of a move that found none.
NO_PARTY = Party(engine_id="", engine_incarnation="", node_id="", node_incarnation="")


def check_movable(session: SessionRecord, target_node_id: str, fleet: Fleet) -> None:
    """Refuse what can never begin. `target_node_id` empty: placement chooses.

    Raises:
        NotFound: no such node. InvalidInput: a move to itself. Conflict: the session is in
            another move, or does not run.
    """
    if target_node_id:
        fleet.node(target_node_id, "target_node_id")
    if session.state is not SessionState.LIVE:
        raise busy(session.session_id, session.state.value)
    if target_node_id == session.node_id:
        raise InvalidInput(
            f"session {session.session_id} is already on {target_node_id}: name another node",
            reason="MOVE_TO_ITSELF",
            field="target_node_id",
        )


def new_move(
    move_id: str,
    session: SessionRecord,
    target_node_id: str,
    goal: Goal,
    fleet: Fleet,
    shortlist: Shortlist,
    now: float,
) -> tuple[Move, tuple[Target, ...]]:
    """The move and the targets that it may have, the best of them its target until admission has
    chosen; REJECTED, with the verdict, where none will do.
    """
    choice = shortlist.targets(wish_of(session, fleet, target_node_id), now)
    source = fleet.party(session.owner)
    if source.engine_incarnation != session.owner_incarnation:
        # The process that has the world, which is not the one that has the name now.
        source = replace(source, engine_incarnation=session.owner_incarnation)
    targets = () if isinstance(choice, Verdict) else choice
    move = Move(
        move_id=move_id,
        session_id=session.session_id,
        source=source,
        target=targets[0].party if targets else NO_PARTY,
        source_epoch=session.epoch,
        goal=goal,
        tier_dropped=bool(targets) and targets[0].tier_dropped,
    )
    if isinstance(choice, Verdict):
        move = _rejected(move, choice, target_node_id)
    return move, targets


def wish_of(session: SessionRecord, fleet: Fleet, target_node_id: str = "") -> MoveWish:
    """What a move of that session asks of its target.

    Raises:
        NotFound: its node has come back without its engine's device.
    """
    return MoveWish(
        source_node_id=session.node_id,
        source=fleet.place(session.owner),
        fingerprint=fleet.engine(session.owner).fingerprint,
        contract=session.contract,
        extent_bytes=session.extent_bytes,
        node_id=target_node_id,
        preset=session.world.preset,
    )


def _rejected(move: Move, verdict: Verdict, target_node_id: str) -> Move:
    return replace(
        move,
        target=replace(NO_PARTY, node_id=target_node_id),
        phase=MovePhase.REJECTED,
        verdict=verdict,
        story=(f"rejected by placement: {verdict.label}",),
    )


def same_request(earlier: MoveEntry, session_id: str) -> MoveEntry:
    """The earlier move of an idempotency key, if it was asked for the same session.

    Raises:
        Conflict: it was another.
    """
    if earlier.move.session_id != session_id:
        raise Conflict(
            f"the idempotency key was used for a move of session {earlier.move.session_id}",
            reason="IDEMPOTENCY_KEY_REUSED",
            field="idempotency_key",
        )
    return earlier


def busy(session_id: str, state: str) -> Conflict:
    """Why a session in this state cannot be moved, suspended or read."""
    if state == SessionState.MOVING.value:
        return Conflict(
            f"session {session_id} is in another move; wait for it or roll it back",
            reason="MOVE_IN_PROGRESS",
            field="session_id",
        )
    if state in _SUSPENSIONS:
        return Conflict(
            f"session {session_id} is {state}; {_SUSPENSIONS[state]}",
            reason=f"SESSION_{state.upper()}",
            field="session_id",
        )
    return Conflict(
        f"session {session_id} is {state}: it does not run",
        reason=f"SESSION_{state.upper()}",
        field="session_id",
    )
