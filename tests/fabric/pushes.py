"""Pushes: one state's way between two nodes under a ticket, in the steps that placement takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.fabric.services import CALL_S, Services
from tests.fabric.worlds import EPOCH
from worldline.rpc.channel import call
from worldline.rpc.push import PushCall
from worldline.state.codec import layout_to_proto
from worldline.state.layout import Layout
from worldline.v1 import move_pb2, mover_pb2

#: Far above any transfer here, so that what is lost ends the run with a reason.
PUSH_S = 30.0


@dataclass(slots=True)
class Landed:
    """A push that ended well. Times are the driver's own, of one monotonic clock, in seconds."""

    went_s: float
    verified_s: float
    outcome: mover_pb2.PushOutcome

    @property
    def stats(self) -> move_pb2.PushStats:
        """The source mover's figures."""
        return self.outcome.push_stats


class Push:
    """A reservation at the target and the order at the source; armed, it holds the wire."""

    def __init__(self, call_: PushCall, layout: Layout, slot: move_pb2.SlotRef) -> None:
        self._call = call_
        self._layout = layout
        #: The target's.
        self.slot = slot

    async def arm(self) -> None:
        """Ask for the wire; return once it is granted.

        Raises:
            WorldlineError: why it will not be.
        """
        await self._call.arm()

    async def go(self) -> Landed:
        """Send everything; return once the target has verified and promoted it.

        Raises:
            WorldlineError: it failed.
        """
        went_s = now_s()
        await self._call.go(1, self._layout)
        outcome = await self._call.outcome()
        return Landed(went_s, now_s(), outcome)


@asynccontextmanager
async def push_of(
    services: Services,
    ticket: move_pb2.SignedTicket,
    session_id: str,
    layout: Layout,
    *,
    source: str,
    target: str,
    slot: move_pb2.SlotRef | None,
) -> AsyncIterator[Push]:
    """Reserve at the target. What was not promoted is released in the end, and the call is over.

    `slot` is where the state rests at its source; None: a probe, of random bytes.

    Raises:
        WorldlineError: the target refused.
    """
    message = layout_to_proto(layout)
    reserve = mover_pb2.ReserveRequest(ticket=ticket, layout=message)
    reserved = await call(services.mover(target).Reserve, reserve, timeout_s=CALL_S)
    probe: dict[str, Any] = {"verification": "VERIFICATION_OFF"} if slot is None else {}
    order = mover_pb2.PushOrder(
        ticket=ticket,
        session_id=session_id,
        epoch=EPOCH,
        layout=message,
        source_slot=slot,
        reservation_id=reserved.reservation_id,
        target_mover_address=services.address(target),
        promote=slot is not None,
        **probe,
    )
    push = PushCall(services.mover(source), order, PUSH_S)
    landed = False
    try:
        yield Push(push, layout, reserved.slot)
        landed = slot is not None
    finally:
        await push.close()
        if not landed:
            undo = mover_pb2.ReleaseRequest(slot=reserved.slot, session_id=session_id)
            await call(services.mover(target).Release, undo, timeout_s=CALL_S)


def now_s() -> float:
    """The driver's clock."""
    return asyncio.get_running_loop().time()
