"""Session: one world on this engine: its core, its memory, its outbox, its stream."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog

from services.engine import events as ev
from services.engine.core import World, decide
from services.engine.memory import Memory
from services.engine.outbox import Outbox
from services.engine.signal import Signal, wait_for_change
from services.engine.world import Action, Frames, WorldModel
from worldline.contract import Contract
from worldline.errors import Conflict, DeadlineExceeded
from worldline.telemetry import ActiveSpan, current_span, no_span
from worldline.v1 import move_pb2

_log = structlog.get_logger(__name__)


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
        self.slot = slot
        self.memory: Memory | None = None
        self.outbox = Outbox(world.block_index)
        self.stream: Stream | None = None
        self.ending: ev.Ending | None = None
        #: When it ended, for the tombstone.
        self.ended_at = 0.0
        self.changed = Signal()
        #: The block in flight, when its action arrived, what its quanta took so far.
        self.run: Generator[None, None, Frames] | None = None
        self.begun_at = 0.0
        self.spent_ms = 0.0
        #: Readers of the slot at a boundary: no quantum and no unmapping meanwhile.
        self.held = 0
        #: Renewals in a row that did not name this session as this engine's.
        self.renewals_missed = 0
        self.owned_since = 0.0
        #: The span of the move that brought it here, a traceparent; empty where none did.
        self.came_in = ""
        self._unmapped = asyncio.Event()

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.world.session_id

    @property
    def room(self) -> bool:
        """Whether one more block fits the outbox without dropping one the client has not read."""
        if self.stream is None:
            return True
        return self.outbox.next_block_index - self.stream.cursor < self.outbox.capacity

    def apply(self, event: ev.Event, now: float) -> tuple[ev.Effect, ...]:
        """Feed the core; returns the effects that are left to the runtime."""
        decision = decide(self.world, event, now)
        if decision.world.phase is not self.world.phase:
            _log.info(
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

    def begin(self, action: Action, now: float) -> Generator[None, None, Frames]:
        """Begin the next block."""
        self.begun_at = self.world.pending[0].arrived_at if self.world.pending else now
        self.apply(ev.Dispatched(), now)
        memory = self.open_memory()
        memory.changing()
        self.run = self.model.block(memory.state, action, self.model.denoising_steps)
        self.spent_ms = 0.0
        return self.run

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
        try:
            yield memory
        finally:
            self.held -= 1
            if self.held == 0 and self.ending is not None:
                self.unmap()
            self.changed.notify()

    def unmap(self) -> None:
        """Drop the state's views and unmap the slot."""
        if self.run is not None:
            self.run.close()
            self.run = None
        memory, self.memory = self.memory, None
        if memory is not None:
            memory.close()
        self._unmapped.set()

    async def unmapped(self, timeout_s: float) -> None:
        """Wait until the slot is no longer mapped here.

        Raises:
            DeadlineExceeded: a block or a reader still uses it.
        """
        if not await wait_for_change(self._unmapped, timeout_s):
            raise DeadlineExceeded(f"session {self.session_id} still uses its slot")

    def _end(self, ending: ev.Ending, now: float) -> None:
        self.ending = ending
        self.ended_at = now
        if self.held == 0:
            self.unmap()
