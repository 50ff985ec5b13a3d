"""Core: the life of one world on one engine, as decisions without I/O or clock.

`decide(world, event, now)` gives the world afterwards, the effects to carry out in order, and a
reason. A pair of phase and event that `_TABLE` lacks is a `Conflict` that names both. Whether the
engine's lease holds is not the world's business: the schedule asks it before every quantum.

Invariants: FROZEN ends only by a word of placement, never by time (a move that committed
somewhere else must not find its source running); a block in flight reaches its boundary before
the world freezes or closes, but not one quantum more is run for a world that lost its owner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from services.engine import events as ev
from services.engine.pace import Pace
from services.engine.world import Action
from worldline.errors import CapacityExhausted, Conflict, Fenced, InvalidInput

#: Actions that may wait for their block; the stream is not read further beyond it.
PENDING_MAX = 8
#: A frozen or attached world that hears nothing for this long asks placement.
ASK_AFTER_S = 3.0
#: Ended moves that a late freeze is recognised by.
ENDED_MOVES_MAX = 16


class Phase(StrEnum):
    """Where a world is in its life on this engine."""

    OPENING = "opening"
    RUNNING = "running"
    GENERATING = "generating"
    FREEZING = "freezing"
    FROZEN = "frozen"
    ATTACHED = "attached"
    CLOSING = "closing"
    RELEASED = "released"


@dataclass(frozen=True)
class Pending:
    """An action that waits for its block."""

    action: Action
    arrived_at: float
    #: Steps that its block must have, as a replay says; 0: what contract and time allow.
    steps: int = 0


@dataclass(frozen=True)
class World:
    """One session as this engine sees it."""

    session_id: str
    epoch: int
    phase: Phase
    #: The block that the state is at: generated next, or being generated.
    block_index: int = 0
    #: When its blocks are released and due.
    pace: Pace = field(default_factory=Pace)
    pending: tuple[Pending, ...] = ()
    #: The move that froze or attached this world.
    move_id: str = ""
    #: When placement last said something about `move_id`.
    heard_at: float = 0.0
    ended_moves: tuple[str, ...] = ()
    #: Set while CLOSING: how it ends at the boundary.
    ending: ev.Ending | None = None

    @property
    def mid_block(self) -> bool:
        """A block is in flight: the state is between boundaries."""
        return self.phase in (Phase.GENERATING, Phase.FREEZING, Phase.CLOSING)

    @property
    def disowned(self) -> bool:
        """The block in flight is given up: its slot may be another's by now."""
        return self.phase is Phase.CLOSING and self.ending is not None and self.ending.at_once

    @property
    def next_action_index(self) -> int:
        """The block that the next action must be for."""
        return self.block_index + len(self.pending) + (1 if self.mid_block else 0)


@dataclass(frozen=True)
class Decision:
    """What an event led to."""

    world: World
    reason: str
    effects: tuple[ev.Effect, ...] = field(default=())


def decide(world: World, event: ev.Event, now: float) -> Decision:
    """Apply one event.

    Raises:
        Conflict: the world's phase does not allow the event.
        Fenced: the event speaks for an epoch that is not the world's.
        InvalidInput: an action that is not for the next block.
        CapacityExhausted: more actions wait than may.
    """
    handler = _TABLE.get((world.phase, type(event)))
    if handler is None:
        raise Conflict(
            f"session {world.session_id} is {world.phase}: {_WORDS[type(event)]} is not possible",
            reason=f"WORLD_{world.phase.name}",
        )
    return handler(world, event, now)


def _opened(world: World, event: ev.Opened, now: float) -> Decision:
    return Decision(replace(world, phase=Phase.RUNNING), "opened")


def _action_arrived(world: World, event: ev.ActionArrived, now: float) -> Decision:
    expected = world.next_action_index
    if event.action.block_index != expected:
        raise InvalidInput(
            f"action.block_index is {event.action.block_index}: the next block without an action "
            f"is {expected}",
            field="action.block_index",
        )
    if len(world.pending) >= PENDING_MAX:
        raise CapacityExhausted(
            f"{PENDING_MAX} actions wait already: read the blocks first", reason="ACTIONS_WAITING"
        )
    pace = world.pace
    if not world.pending and world.phase is Phase.RUNNING:
        pace = pace.asked(now)
    pending = (*world.pending, Pending(event.action, now, event.steps))
    return Decision(replace(world, pending=pending, pace=pace), "action queued")


def _stream_ended(world: World, event: ev.StreamEnded, now: float) -> Decision:
    pace = world.pace if world.mid_block else world.pace.withdrawn(now)
    forgotten = f"{len(world.pending)} waiting actions forgotten"
    return Decision(replace(world, pending=(), pace=pace), forgotten)


def _dispatched(world: World, event: ev.Dispatched, now: float) -> Decision:
    if not world.pending:
        raise Conflict(f"session {world.session_id} has no action", reason="NO_ACTION")
    pace = world.pace.begun(event.degraded)
    world = replace(world, phase=Phase.GENERATING, pending=world.pending[1:], pace=pace)
    return Decision(world, f"block {world.block_index} begun")


def _block_done(world: World, event: ev.BlockDone, now: float) -> Decision:
    pace = world.pace.done(now, event.block_s, event.expected_s)
    done = replace(world, block_index=world.block_index + 1, pace=pace, phase=Phase.RUNNING)
    reason = f"block {world.block_index} done"
    if world.phase is Phase.FREEZING:
        return Decision(replace(done, phase=Phase.FROZEN, heard_at=now), f"{reason}, frozen")
    if world.phase is Phase.CLOSING:
        return _release(done, world.ending or ev.Ending(), f"{reason}, released")
    if done.pending:
        done = replace(done, pace=pace.asked(done.pending[0].arrived_at))
    return Decision(done, reason)


def _block_failed(world: World, event: ev.BlockFailed, now: float) -> Decision:
    ending = ev.Ending(error=event.error, failed=not world.disowned)
    return _release(world, ending, f"block {world.block_index} failed")


def _freeze(world: World, event: ev.FreezeAsked, now: float) -> Decision:
    _check_epoch(world, event.epoch)
    if event.move_id in world.ended_moves:
        raise Conflict(f"move {event.move_id} has ended: freeze refused", reason="MOVE_ENDED")
    world = replace(world, move_id=event.move_id, heard_at=now)
    if world.phase is Phase.GENERATING:
        return Decision(replace(world, phase=Phase.FREEZING), "freezes at the next boundary")
    frozen = replace(world, phase=Phase.FROZEN, pace=world.pace.stopped(now))
    return Decision(frozen, "frozen between blocks")


def _freeze_again(world: World, event: ev.FreezeAsked, now: float) -> Decision:
    _check_epoch(world, event.epoch)
    _check_move(world, event.move_id)
    return Decision(replace(world, heard_at=now), f"{world.phase} already")


def _thaw(world: World, event: ev.ThawAsked, now: float) -> Decision:
    _check_epoch(world, event.epoch)
    _check_move(world, event.move_id)
    return _thawed(world, "thawed", now)


def _thawed(world: World, reason: str, now: float) -> Decision:
    thawed = _end_move(world, world.move_id)
    if world.phase is Phase.FREEZING:
        return Decision(replace(thawed, phase=Phase.GENERATING), reason)
    asked_at = world.pending[0].arrived_at if world.pending else None
    pace = world.pace.resumed(now, asked_at)
    return Decision(replace(thawed, phase=Phase.RUNNING, pace=pace), reason)


def _thaw_running(world: World, event: ev.ThawAsked, now: float) -> Decision:
    """The freeze never came, or was thawed before: a freeze that comes late is refused."""
    _check_epoch(world, event.epoch)
    return Decision(_end_move(world, event.move_id), "was not frozen")


def _activate(world: World, event: ev.ActivateAsked, now: float) -> Decision:
    _check_move(world, event.move_id)
    if event.epoch != world.epoch + 1:
        raise Fenced(
            f"session {world.session_id} was staged from epoch {world.epoch}: epoch "
            f"{event.epoch} does not follow it"
        )
    world = replace(world, phase=Phase.RUNNING, epoch=event.epoch)
    return Decision(world, f"owns epoch {event.epoch}")


def _activate_again(world: World, event: ev.ActivateAsked, now: float) -> Decision:
    _check_move(world, event.move_id)
    _check_epoch(world, event.epoch)
    return Decision(world, "active already")


def _detach_source(world: World, event: ev.DetachAsked, now: float) -> Decision:
    _check_move(world, event.move_id)
    if event.suspended:
        _check_epoch(world, event.epoch)
        return _release(world, ev.Ending(error=_suspended(world)), "suspended")
    if not event.engine_address:
        raise InvalidInput(
            f"session {world.session_id} is frozen here: a detach must say where it lives now",
            field="engine_address",
        )
    if event.epoch != world.epoch + 1:
        raise Fenced(f"epoch {event.epoch} does not follow epoch {world.epoch} of the source")
    ending = ev.Ending(engine_address=event.engine_address, epoch=event.epoch)
    return _release(world, ending, f"moved to {event.engine_address}")


def _detach_staged(world: World, event: ev.DetachAsked, now: float) -> Decision:
    _check_move(world, event.move_id)
    return _release(world, _aborted(world), "staged copy dropped")


def _nothing(world: World, event: Any, now: float) -> Decision:
    return Decision(world, "nothing to do")


def _close(world: World, event: ev.CloseAsked, now: float) -> Decision:
    _check_epoch(world, event.epoch)
    error = Conflict(f"session {world.session_id} was closed", reason="SESSION_CLOSED")
    return _end(world, ev.Ending(error=error), "closed")


def _ownership_lost(world: World, event: ev.OwnershipLost, now: float) -> Decision:
    error = Fenced(
        f"session {world.session_id} is no longer this engine's at epoch {world.epoch}",
        reason="OWNERSHIP_LOST",
    )
    return _end(world, ev.Ending(error=error, at_once=True), "ownership lost")


def _end(world: World, ending: ev.Ending, reason: str) -> Decision:
    """Release now, or when the block in flight is done (or given up, see `disowned`)."""
    if world.phase is Phase.GENERATING:
        return Decision(replace(world, phase=Phase.CLOSING, ending=ending, pending=()), reason)
    return _release(world, ending, reason)


def _release(world: World, ending: ev.Ending, reason: str) -> Decision:
    world = replace(world, phase=Phase.RELEASED, pending=(), ending=ending)
    return Decision(world, reason, (ev.EndWorld(ending),))


def _ask_timer(world: World, event: ev.AskTimerFired, now: float) -> Decision:
    if now - world.heard_at < ASK_AFTER_S:
        return Decision(world, "placement was heard")
    # Asked again only after another silence, however long the answer takes.
    return Decision(
        replace(world, heard_at=now), "placement is silent", (ev.AskMove(world.move_id),)
    )


def _answered_frozen(world: World, event: ev.MoveAnswered, now: float) -> Decision:
    if event.move_id != world.move_id:
        return Decision(world, "answer about another move")
    world = replace(world, heard_at=now)
    if event.outcome.ended:
        return _thawed(world, "the move ended without a commit", now)
    if event.outcome.over and event.outcome.suspended:
        return _release(world, ev.Ending(error=_suspended(world)), "suspended long ago")
    if event.outcome.over:
        error = Fenced(
            f"session {world.session_id} moved away while this engine was not heard; ask where",
            reason="OWNERSHIP_LOST",
        )
        return _release(world, ev.Ending(error=error), "the move is over: no detach will come")
    if event.outcome.committed:
        return Decision(world, "the move committed: the detach will come")
    return Decision(world, "the move goes on")


def _answered_attached(world: World, event: ev.MoveAnswered, now: float) -> Decision:
    if event.move_id != world.move_id:
        return Decision(world, "answer about another move")
    world = replace(world, heard_at=now)
    if event.outcome.ended:
        return _release(world, _aborted(world), "the move ended without a commit")
    if event.outcome.over:
        # The directory made this engine the owner; nobody else runs the world, or ever will.
        world = replace(world, phase=Phase.RUNNING, epoch=world.epoch + 1)
        return Decision(world, f"the move is over: owns epoch {world.epoch}")
    return Decision(world, "the move goes on")


def _suspended(world: World) -> Conflict:
    return Conflict(
        f"session {world.session_id} is suspended at block {world.block_index}; resume it "
        f"(`worldline resume {world.session_id}`, or Session.resume) and play on",
        reason="SESSION_SUSPENDED",
        field="session_id",
    )


def _aborted(world: World) -> ev.Ending:
    message = f"move {world.move_id} of session {world.session_id} did not commit"
    return ev.Ending(error=Conflict(message, reason="MOVE_ABORTED"))


def _end_move(world: World, move_id: str) -> World:
    kept = tuple(known for known in world.ended_moves if known != move_id)
    ended = (*kept, move_id)[-ENDED_MOVES_MAX:]
    return replace(world, ended_moves=ended, move_id="")


def _check_epoch(world: World, epoch: int) -> None:
    if epoch != world.epoch:
        raise Fenced(f"session {world.session_id} is at epoch {world.epoch}, not {epoch}")


def _check_move(world: World, move_id: str) -> None:
    if move_id != world.move_id:
        raise Conflict(
            f"session {world.session_id} is {world.phase} for move {world.move_id!r}, "
            f"not for {move_id!r}",
            reason="OTHER_MOVE",
        )


_Handler = Callable[[World, Any, float], Decision]
_TABLE: dict[tuple[Phase, type], _Handler] = {
    (Phase.OPENING, ev.Opened): _opened,
    (Phase.RUNNING, ev.ActionArrived): _action_arrived,
    (Phase.RUNNING, ev.StreamEnded): _stream_ended,
    (Phase.RUNNING, ev.Dispatched): _dispatched,
    (Phase.RUNNING, ev.FreezeAsked): _freeze,
    (Phase.RUNNING, ev.ThawAsked): _thaw_running,
    (Phase.RUNNING, ev.ActivateAsked): _activate_again,
    (Phase.RUNNING, ev.CloseAsked): _close,
    (Phase.RUNNING, ev.OwnershipLost): _ownership_lost,
    (Phase.GENERATING, ev.ActionArrived): _action_arrived,
    (Phase.GENERATING, ev.StreamEnded): _stream_ended,
    (Phase.GENERATING, ev.BlockDone): _block_done,
    (Phase.GENERATING, ev.BlockFailed): _block_failed,
    (Phase.GENERATING, ev.FreezeAsked): _freeze,
    (Phase.GENERATING, ev.ThawAsked): _thaw_running,
    (Phase.GENERATING, ev.ActivateAsked): _activate_again,
    (Phase.GENERATING, ev.CloseAsked): _close,
    (Phase.GENERATING, ev.OwnershipLost): _ownership_lost,
    (Phase.FREEZING, ev.ActionArrived): _action_arrived,
    (Phase.FREEZING, ev.StreamEnded): _stream_ended,
    (Phase.FREEZING, ev.BlockDone): _block_done,
    (Phase.FREEZING, ev.BlockFailed): _block_failed,
    (Phase.FREEZING, ev.FreezeAsked): _freeze_again,
    (Phase.FREEZING, ev.ThawAsked): _thaw,
    (Phase.FROZEN, ev.ActionArrived): _action_arrived,
    (Phase.FROZEN, ev.StreamEnded): _stream_ended,
    (Phase.FROZEN, ev.FreezeAsked): _freeze_again,
    (Phase.FROZEN, ev.ThawAsked): _thaw,
    (Phase.FROZEN, ev.DetachAsked): _detach_source,
    (Phase.FROZEN, ev.AskTimerFired): _ask_timer,
    (Phase.FROZEN, ev.MoveAnswered): _answered_frozen,
    (Phase.ATTACHED, ev.StreamEnded): _stream_ended,
    (Phase.ATTACHED, ev.ActivateAsked): _activate,
    (Phase.ATTACHED, ev.DetachAsked): _detach_staged,
    (Phase.ATTACHED, ev.AskTimerFired): _ask_timer,
    (Phase.ATTACHED, ev.MoveAnswered): _answered_attached,
    (Phase.CLOSING, ev.StreamEnded): _stream_ended,
    (Phase.CLOSING, ev.BlockDone): _block_done,
    (Phase.CLOSING, ev.BlockFailed): _block_failed,
    (Phase.CLOSING, ev.CloseAsked): _nothing,
    (Phase.CLOSING, ev.OwnershipLost): _nothing,
    (Phase.RELEASED, ev.StreamEnded): _nothing,
    (Phase.RELEASED, ev.DetachAsked): _nothing,
    (Phase.RELEASED, ev.CloseAsked): _nothing,
}
_WORDS: dict[type, str] = {
    ev.Opened: "opening",
    ev.ActionArrived: "an action",
    ev.StreamEnded: "ending its stream",
    ev.Dispatched: "beginning a block",
    ev.BlockDone: "ending a block",
    ev.BlockFailed: "failing a block",
    ev.FreezeAsked: "a freeze",
    ev.ThawAsked: "a thaw",
    ev.ActivateAsked: "an activation",
    ev.DetachAsked: "a detach",
    ev.CloseAsked: "closing",
    ev.OwnershipLost: "losing ownership",
    ev.AskTimerFired: "asking about a move",
    ev.MoveAnswered: "an answer about a move",
}
