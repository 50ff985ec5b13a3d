"""Push source: the bytes that a push reads, pinned until it lets go of them.

A session's are its LIVE slot's. A probe's are random bytes in memory of the same kind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

import structlog

from services.mover.blanks import NO_BLANKS, Blanks, find_blanks, know_zeros
from services.mover.crossing import settled
from services.mover.gate import Admitted
from services.mover.memory.base import SlotMemory
from services.mover.memory.scratch import random_memory
from services.mover.offer import PushOrder
from services.mover.slots import SlotRole
from services.mover.tickets import Subject, Use, check_offered, check_source
from worldline.errors import InvalidInput, WorldlineError
from worldline.state.layout import Layout
from worldline.ticket import MovePurpose

if TYPE_CHECKING:
    from services.mover.runtime import MoverRuntime

_log = structlog.get_logger(__name__)


class PushSource:
    """What one push reads. Whoever took it lets go of it, once no request touches it."""

    def __init__(self, memory: SlotMemory, release: Callable[[], None]) -> None:
        self.memory = memory
        self._release = release
        #: A thread that looks for zeros.
        self._looking: asyncio.Future[Blanks] | None = None

    def look(self, pool: Executor, layout: Layout) -> None:
        """Begin to look for what need not travel."""
        loop = asyncio.get_running_loop()
        self._looking = loop.run_in_executor(pool, self._look, layout)

    def _look(self, layout: Layout) -> Blanks:
        found = find_blanks(self.memory, layout.extent_bytes)
        if found.runs:
            know_zeros(layout)
        return found

    async def blanks(self) -> Blanks:
        """What was found; nothing where nobody looked, or where the device could not say."""
        if self._looking is None:
            return NO_BLANKS
        try:
            return await asyncio.shield(self._looking)
        except WorldlineError as error:
            _log.warning("push.no_look", device=self.memory.device, error=str(error))
            return NO_BLANKS

    async def let_go(self) -> None:
        """Unpin the slot, or free the probe's memory, once no thread reads it."""
        if self._looking is not None:
            await settled([self._looking])
        self._release()


async def take_source(runtime: MoverRuntime, order: PushOrder, admitted: Admitted) -> PushSource:
    """The memory of an order, if its ticket permits it. The ticket is redeemed.

    Raises:
        TicketRefused, InvalidInput, Fenced, NotFound, Conflict: nothing was taken.
    """
    claims, layout = admitted.claims, order.layout
    subject = Subject(
        session_id=order.session_id,
        topology_hash=layout.topology_hash,
        extent_bytes=layout.extent_bytes,
        epoch=order.epoch,
    )
    check_offered(claims, subject)
    check_source(claims, runtime.node_id, subject)
    if claims.purpose is MovePurpose.PROBE:
        runtime.book.redeem(claims, Use.PUSH, admitted.grant_by, runtime.now())
        return await _scratch(runtime, order)
    slot = order.slot
    if slot is None:
        raise InvalidInput("a session's push needs its slot", field="source_slot")
    state = runtime.slots.resolve(slot, order.session_id, frozenset({SlotRole.LIVE}))
    if layout.extent_bytes > state.extent_bytes:
        raise InvalidInput(
            f"the layout covers {layout.extent_bytes} bytes, the slot holds {state.extent_bytes}",
            field="layout.extent_bytes",
        )
    runtime.book.redeem(claims, Use.PUSH, admitted.grant_by, runtime.now())
    runtime.slots.pin(slot)
    return PushSource(runtime.slot_memory(slot), lambda: runtime.slots.unpin(slot, runtime.now()))


async def _scratch(runtime: MoverRuntime, order: PushOrder) -> PushSource:
    """Random bytes in the same kind of memory as a slot's."""
    extent_bytes = order.layout.extent_bytes
    shelf = runtime.slots.shelf(order.probe_device)
    if extent_bytes > shelf.slot_bytes:
        raise InvalidInput(
            f"a probe of {extent_bytes} bytes is larger than a slot",
            field="layout.extent_bytes",
        )
    loop = asyncio.get_running_loop()
    work = loop.run_in_executor(runtime.pool, random_memory, shelf.device, extent_bytes)
    try:
        scratch = await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        if work.exception() is None:
            work.result().close()
        raise
    return PushSource(scratch, scratch.close)
