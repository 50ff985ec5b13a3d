"""Forking: branches of a live world, copied on its own device while it stands at a block boundary.

The parent is held for one copy and one digest of its state, however many branches there are: slots
are taken and mapped before, and the other branches are copied from the first while the parent plays
on. Each copy is proven equal before its noise is split. All branches come to life at once, or none
does and nothing is left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import structlog

from services.engine import events as ev
from services.engine.boundary import boundary
from services.engine.chores import Chores
from services.engine.core import Phase
from services.engine.fork_order import (
    Branch,
    ForkOrder,
    check_forkable,
    check_noise,
    check_standing,
)
from services.engine.making import check_quality, memory_for, new_world
from services.engine.memory import Memory
from services.engine.models import Models
from services.engine.parts import Parts
from services.engine.peers import Slots
from services.engine.reading import to_the_end
from services.engine.session import Session
from services.engine.signal import Signal
from services.engine.slotmap import SlotMap
from services.engine.unmapping import begin_unmapping
from services.engine.world import SplitsNoise
from worldline.errors import IntegrityError, InvariantBroken, WorldlineError
from worldline.state.difference import compare
from worldline.state.layout import Layout
from worldline.state.manifest import Digests
from worldline.v1 import move_pb2

_log = structlog.get_logger(__name__)


@dataclass
class _Seat:
    """A branch on its way: its slot, that slot mapped, the state in it."""

    branch: Branch
    slot: move_pb2.SlotRef
    mapped: SlotMap | None = None
    memory: Memory | None = None


@dataclass(frozen=True)
class Forked:
    """What a fork made, in the order asked for; `held_ms` is how long the parent stood for it."""

    block_index: int
    sessions: tuple[Session, ...]
    held_ms: float


class Forking:
    """Forks the worlds of one engine. Called on the event loop only.

    `coming` keeps a second call from making a session of that name meanwhile; `wake` is notified
    when the parent may go on.
    """

    def __init__(
        self,
        *,
        sessions: dict[str, Session],
        models: Models,
        chores: Chores,
        slots: Slots,
        coming: Callable[[str], AbstractContextManager[None]],
        wake: Signal,
    ) -> None:
        self._sessions = sessions
        self._models = models
        self._chores = chores
        self._slots = slots
        self._coming = coming
        self._wake = wake

    async def fork(self, parent: Session, order: ForkOrder) -> Forked:
        """Make every branch of the order, live at the parent's next boundary, or none.

        Raises:
            Conflict: the parent is frozen, arriving or ending; it ended meanwhile (PARENT_GONE);
                or a branch's session is here already.
            Fenced: the parent is in another epoch.
            InvalidInput: the model cannot split its noise, or not reach the contract's floor.
            CapacityExhausted: no slot for one of them.
            DeadlineExceeded: the parent came to no boundary in time.
            IntegrityError: a copy differs from the parent; `leaf` says where.
        """
        check_forkable(parent.world, order.epoch)
        check_noise(parent.model, order)
        loaded = await self._models.get(parent.model.preset)
        check_quality(order.contract, loaded)
        seats: list[_Seat] = []
        with ExitStack() as coming:
            for branch in order.branches:
                coming.enter_context(self._coming(branch.session_id))
            try:
                await self._take_seats(order, seats, loaded.layout.extent_bytes)
                return await self._fork(parent, order, seats)
            except BaseException:
                await self._undo(seats)
                raise

    async def _take_seats(self, order: ForkOrder, seats: list[_Seat], extent_bytes: int) -> None:
        for branch in order.branches:
            slot = await self._slots.allocate(branch.session_id, extent_bytes)
            seat = _Seat(branch, slot)
            seats.append(seat)
            seat.mapped = await self._slots.map(slot, branch.session_id)

    async def _fork(self, parent: Session, order: ForkOrder, seats: list[_Seat]) -> Forked:
        try:
            with parent.hold() as source:
                await self._boundary(parent)
                held_at = time.monotonic()
                block_index = parent.world.block_index
                check_standing(parent.world, order.epoch, block_index)
                layout = await self._chores.run(source.storing(), stands=True)
                await self._copy(parent, source, layout, seats[0], stands=True)
                expected = await to_the_end(source.digests)
                check_standing(parent.world, order.epoch, block_index)
                held_ms = (time.monotonic() - held_at) * 1e3
        finally:
            # Whoever waits for the parent's next block was passed over meanwhile.
            self._wake.notify()
        for seat in seats[1:]:
            await self._copy(parent, _memory(seats[0]), layout, seat)
        for seat in seats:
            await self._prove(seat, layout, expected)
            if not order.same_noise:
                await self._split(parent, seat)
        _log.info(
            "world.forked",
            session_id=parent.session_id,
            branches=len(seats),
            block_index=block_index,
            held_ms=round(held_ms, 3),
        )
        return Forked(block_index, self._begin(parent, order, seats, block_index), held_ms)

    async def _boundary(self, parent: Session) -> None:
        """Held, it begins no other block: the one in flight is the last."""
        await boundary(parent)

    async def _copy(
        self,
        parent: Session,
        source: Memory,
        layout: Layout,
        seat: _Seat,
        *,
        stands: bool = False,
    ) -> None:
        mapped = seat.mapped
        if mapped is None:
            raise InvariantBroken(f"branch {seat.branch.session_id} has no slot mapped")
        seat.memory = memory = memory_for(parent.model, mapped, layout)
        await self._chores.run(memory.copying(source), stands=stands)
        if memory.copies:
            await self._chores.run(memory.loading(), stands=stands)

    async def _prove(self, seat: _Seat, layout: Layout, expected: Digests) -> None:
        """The branch is the parent, bit for bit, tensors and scalars (I2)."""
        actual = await to_the_end(_memory(seat).digests)
        difference = compare(layout, expected, actual)
        if difference is not None:
            raise IntegrityError(
                f"branch {seat.branch.session_id} is no copy of its parent: {difference.message}",
                leaf=difference.leaf,
                granule=difference.granule,
            )

    async def _split(self, parent: Session, seat: _Seat) -> None:
        model, memory, number = parent.model, _memory(seat), seat.branch.number
        if not isinstance(model, SplitsNoise):
            raise InvariantBroken(f"{parent.model.preset} does not split its noise")
        failed = await self._chores.run(_try_split(model, memory, number))
        if failed is not None:
            raise failed

    def _begin(
        self, parent: Session, order: ForkOrder, seats: Iterable[_Seat], block_index: int
    ) -> tuple[Session, ...]:
        """Every branch comes to life; nothing is awaited, so that nobody sees some of them."""
        now = time.monotonic()
        sessions = []
        for seat in seats:
            branch = seat.branch
            world = new_world(
                branch.session_id,
                branch.epoch,
                Phase.OPENING,
                order.contract,
                block_index=block_index,
            )
            session = Session(world, order.contract, parent.model, seat.slot)
            session.memory = _memory(seat)
            session.owned_since = now
            self._sessions[branch.session_id] = session
            session.apply(ev.Opened(), now)
            sessions.append(session)
        return tuple(sessions)

    async def _undo(self, seats: Iterable[_Seat]) -> None:
        """Also after a cancellation: no slot outlives a fork that failed."""
        leaving = []
        for seat in seats:
            held = seat.memory or seat.mapped
            seat.memory = seat.mapped = None
            leaving.append((seat, None if held is None else begin_unmapping(held)))
        for seat, unmapping in leaving:
            try:
                if unmapping is not None:
                    await unmapping.wait()
                await asyncio.shield(self._slots.release(seat.slot, seat.branch.session_id))
            except WorldlineError as error:
                # The mover reaps slots that no session of the directory owns.
                _log.warning(
                    "slot.release_failed", session_id=seat.branch.session_id, error=str(error)
                )


def _try_split(model: SplitsNoise, memory: Memory, number: int) -> Parts[InvariantBroken | None]:
    """In the worker's thread. What failed comes back without its frames, which may hold views."""
    try:
        memory.changing()
        model.split(memory.state, number)
        memory.check_in_place()
        yield from memory.storing()  # as every state at rest, it is in its slot
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return InvariantBroken(f"the model failed to split the noise of branch {number}: {text}")
    return None


def _memory(seat: _Seat) -> Memory:
    if seat.memory is None:
        raise InvariantBroken(f"branch {seat.branch.session_id} has no state")
    return seat.memory
