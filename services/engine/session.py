"""Session: one world on this engine: its core, its memory, its outbox, its stream."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog

from services.engine import events as ev
from services.engine.core import Phase, World, decide
from services.engine.flight import Flight
from services.engine.memory import Memory
from services.engine.outbox import Outbox
from services.engine.quality import Quality, ladder_of
from services.engine.quantum import block_of
from services.engine.signal import Signal, wait_for_change
from services.engine.unmapping import Unmapping, begin_unmapping
from services.engine.world import WorldModel, quanta_of
from worldline.admissibility.profile_row import shape_of
from worldline.contract import Contract
from worldline.errors import Conflict, DeadlineExceeded, InvariantBroken
from worldline.telemetry import ActiveSpan, current_span, no_span
from worldline.v1 import move_pb2

_log = structlog.get_logger(__name__)

#: Between these a world goes to and fro with every block: nothing that a log tells by itself.
_EVERY_BLOCK = frozenset({Phase.RUNNING, Phase.GENERATING})

#: A boundary that somebody waits for is wanted within this, a third of what they wait at most; or
#: within the contract's horizon where that is shorter.
BOUNDARY_WANTED_S = 10.0


@dataclass
class Stream:
    """The client's side of a session: where it reads, what it wants."""

    cursor: int
    digests_wanted: bool
    superseded: bool = False
    #: From its join to its end.
    span: ActiveSpan = field(default_factory=no_span)


class Session:
    """What the runtime holds for one session. Decisions are the core's, see `apply`."""

    def __init__(
        self, world: World, contract: Contract, model: WorldModel, slot: move_pb2.SlotRef
    ) -> None:
        self.world = world
        self.contract = contract
        self.model = model
        #: Whose row its quanta are learned in.
        self.shape = shape_of(model.preset, contract)
        self.ladder = ladder_of(model, contract)
        self.slot = slot
        self.memory: Memory | None = None
        self.outbox = Outbox(world.block_index)
        self.stream: Stream | None = None
        self.ending: ev.Ending | None = None
        #: When it ended, for the tombstone.
        self.ended_at = 0.0
        self.changed = Signal()
        #: The block in flight.
        self.flight: Flight | None = None
        #: When somebody who waits for the end of the block in flight wants it.
        self.boundary_by = math.inf
        #: Readers of the slot at a boundary: no quantum and no unmapping meanwhile.
        self.held = 0
        #: Renewals in a row that did not name this session as this engine's.
        self.renewals_missed = 0
        self.owned_since = 0.0
        #: The span of the move that brought it here, a traceparent; empty where none did.
        self.came_in = ""
        #: Of its slot, from its end on.
        self._unmapping: Unmapping | None = None

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.world.session_id

    @property
    def room(self) -> bool:
        """Whether one more block fits the outbox without dropping one the client has not read."""
        stream = self.stream
        if stream is None:
            return True
        return self.outbox.next_block_index - stream.cursor < self.outbox.capacity

    def apply(self, event: ev.Event, now: float) -> tuple[ev.Effect, ...]:
        """Feed the core; returns the effects that are left to the runtime."""
        decision = decide(self.world, event, now)
        if decision.world.phase is not self.world.phase:
            between_blocks = {decision.world.phase, self.world.phase} == _EVERY_BLOCK
            log = _log.debug if between_blocks else _log.info
            log(
                "world.phase",
                session_id=self.session_id,
                phase=str(decision.world.phase),
                epoch=decision.world.epoch,
                block_index=decision.world.block_index,
                reason=decision.reason,
            )
        self.world = decision.world
        left: list[ev.Effect] = []
        for effect in decision.effects:
            if isinstance(effect, ev.EndWorld):
                self._end(effect.ending, now)
            else:
                left.append(effect)
        self.changed.notify()
        return tuple(left)

    def note_move(self, what: str, move_id: str) -> None:
        """Have the traces of the client's stream and of a move point to each other."""
        here, stream = current_span(), self.stream
        if stream is None:
            return
        stream.span.event(what, move_id=move_id, block_index=self.world.block_index)
        stream.span.link(here.traceparent, move_id=move_id)
        here.link(stream.span.traceparent, session_id=self.session_id)

    def begin(self, quality: Quality, now: float) -> Flight:
        """Begin the next block, from the action that waits for it.

        Raises:
            Conflict: none does.
        """
        first = self.world.pending[0] if self.world.pending else None
        self.apply(ev.Dispatched(quality.degraded), now)
        if first is None:
            raise InvariantBroken(f"session {self.session_id} began a block without an action")
        memory = self.open_memory()
        memory.changing()
        self.boundary_by = math.inf
        self.flight = Flight(
            run=block_of(self.model, memory.state, first.action, quality.steps),
            quality=quality,
            quanta=quanta_of(self.model, quality.steps),
            begun_at=first.arrived_at,
        )
        return self.flight

    def press(self, now: float) -> None:
        """Somebody waits for the boundary: the block in flight must not wait for all others."""
        wanted_by = now + min(self.world.pace.horizon_s, BOUNDARY_WANTED_S)
        self.boundary_by = min(self.boundary_by, wanted_by)

    def open_memory(self) -> Memory:
        """The mapped slot.

        Raises:
            Conflict: the world is no longer here.
        """
        if self.memory is None:
            raise Conflict(f"session {self.session_id} has no slot here", reason="WORLD_RELEASED")
        return self.memory

    @contextmanager
    def hold(self) -> Iterator[Memory]:
        """Keep the state at its boundary and mapped while it is read."""
        memory = self.open_memory()
        self.held += 1
        self.press(time.monotonic())
        try:
            yield memory
        finally:
            self.held -= 1
            if self.held == 0 and self.ending is not None:
                self.unmap()
            self.changed.notify()

    @property
    def is_mapped(self) -> bool:
        """Whether the slot is in this process's address space, or on its way out of it."""
        if self._unmapping is None:
            return self.memory is not None
        ended = self._unmapping.ended
        return not ended.done() or ended.exception() is not None

    def unmap(self) -> None:
        """Drop the state's views, and begin to unmap the slot: `unmapped` waits for it."""
        if self.flight is not None:
            self.flight.run.close()
            self.flight = None
        memory, self.memory = self.memory, None
        if memory is not None:
            self._unmapping = begin_unmapping(memory)

    async def unmapped(self, timeout_s: float) -> None:
        """Wait until the slot is no longer mapped here.

        Raises:
            DeadlineExceeded: a block or a reader still uses it.
            InvariantBroken: somebody kept a view; it stays mapped.
        """
        until = time.monotonic() + timeout_s
        while self.memory is not None:
            token = self.changed.token()
            if not await wait_for_change(token, until - time.monotonic()):
                raise DeadlineExceeded(f"session {self.session_id} still uses its slot")
        if self._unmapping is not None:
            await self._unmapping.wait(max(0.0, until - time.monotonic()))

    def _end(self, ending: ev.Ending, now: float) -> None:
        self.ending = ending
        self.ended_at = now
        if self.held == 0:
            self.unmap()
