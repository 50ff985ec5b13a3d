"""Beginning of a move: whether a session can move now, and the move to the target chosen. Pure."""

from __future__ import annotations

from dataclasses import replace

from services.placement.choose import Candidate, Chosen, MoveWish, choose_target
from services.placement.fleet import Fleet
from services.placement.move import Move
from services.placement.phases import Goal, MovePhase
from services.placement.records import MoveEntry, SessionRecord, SessionState
from services.placement.values import Party
from worldline.errors import Conflict, InvalidInput
from worldline.verdict import Verdict

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
    candidates: tuple[Candidate, ...],
) -> Move:
    """The move to the target chosen now; REJECTED, with the verdict, where none will do."""
    choice = choose_target(
        candidates,
        MoveWish(
            source_node_id=session.node_id,
            fingerprint=fleet.engine(session.owner).fingerprint,
            contract=session.contract,
            extent_bytes=session.extent_bytes,
            node_id=target_node_id,
        ),
    )
    source = fleet.party(session.owner)
    move = Move(
        move_id=move_id,
        session_id=session.session_id,
        # The process that has the world, which may not be the one that has the name now.
        source=replace(source, engine_incarnation=session.owner_incarnation),
        target=NO_PARTY,
        source_epoch=session.epoch,
        goal=goal,
    )
    if isinstance(choice, Chosen):
        target = fleet.party(choice.engine_id)
        return replace(move, target=target, tier_dropped=choice.tier_dropped)
    return _rejected(move, choice, target_node_id)


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
    """Why a session in this state cannot begin a move."""
    if state == SessionState.MOVING.value:
        return Conflict(
            f"session {session_id} is in another move; wait for it or roll it back",
            reason="MOVE_IN_PROGRESS",
            field="session_id",
        )
    return Conflict(
        f"session {session_id} is {state}: it cannot move",
        reason=f"SESSION_{state.upper()}",
        field="session_id",
    )
