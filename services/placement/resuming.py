"""Resuming: which engine takes a suspended session up, or why none can now. Pure."""

from __future__ import annotations

from services.placement.choose import Chosen, MoveWish, choose_to_resume
from services.placement.device import Place
from services.placement.fleet import Fleet
from services.placement.parked import Parked
from services.placement.records import SessionRecord, SessionState
from worldline.errors import Conflict, Unavailable, WorldlineError
from worldline.verdict import Verdict

RETRY_AFTER_MS = 1_000


def choose_engine_to_resume(
    session: SessionRecord, parked: Parked, fleet: Fleet, now: float
) -> Chosen | Verdict:
    """An engine of the node that has the state: the session's last one, else the first by name; at
    T1 where only that holds and its contract allows the drop. Or why none can go on with it.

    Raises:
        Conflict: SESSION_LOST, the state went with its mover.
        Unavailable: the node is silent, or has no engine now.
    """
    node = fleet.node(parked.node_id)
    if parked.gone_with(node.incarnation):
        raise lost(session)
    if not fleet.node_alive(node.node_id, now):
        raise Unavailable(
            f"node {node.node_id}, which has the state of session {session.session_id}, is silent",
            reason="NODE_SILENT",
            retry_after_ms=RETRY_AFTER_MS,
        )
    # Of a node that is drained too: a session leaves it by being resumed first.
    engines = [
        one
        for engine_id in fleet.engines_on(node.node_id)
        if fleet.engine_alive(engine_id, now)
        and (one := fleet.candidate(engine_id, {}, {}, 0.0, now)) is not None
    ]
    if not engines:
        raise Unavailable(
            f"node {node.node_id}, which has the state of session {session.session_id}, has no "
            "engine now",
            reason="ENGINE_SILENT",
            retry_after_ms=RETRY_AFTER_MS,
        )
    if parked.fingerprint is None:
        # Only the copy itself says what it was frozen under: the engine will look.
        names = sorted(one.engine_id for one in engines)
        return Chosen(session.owner if session.owner in names else names[0])
    wish = MoveWish(
        source_node_id="",
        source=Place(node.host_id),
        fingerprint=parked.fingerprint,
        contract=session.contract,
        extent_bytes=session.extent_bytes,
        preset=session.world.preset,
    )
    return choose_to_resume(engines, wish, session.owner)


def not_resumable(session: SessionRecord) -> WorldlineError:
    """Why a session that is neither live nor suspended cannot be resumed."""
    if session.state is SessionState.LOST:
        return lost(session)
    if session.state is SessionState.MOVING:
        return Conflict(
            f"session {session.session_id} is in a move: it is not suspended",
            reason="MOVE_IN_PROGRESS",
            field="session_id",
        )
    return Conflict(
        f"session {session.session_id} is {session.state.value}: it cannot be resumed",
        reason=f"SESSION_{session.state.name}",
        field="session_id",
    )


def lost(session: SessionRecord) -> Conflict:
    """The world is gone."""
    return Conflict(
        f"session {session.session_id} is lost: what had its state has ended; close it",
        reason="SESSION_LOST",
        field="session_id",
    )
