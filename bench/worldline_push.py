"""Worldline's own contestants: pushes between two real movers, from the go to the verdict.

The only file of the bench that knows how a mover is told to push.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from bench.contestant import Contestant, Failed
from bench.movers import CALL_S, OTHER, SESSION, SOURCE, Movers
from bench.payload import Payload, digest_from, spoil
from worldline.errors import WorldlineError
from worldline.rpc.push import PushCall
from worldline.state.codec import layout_to_proto
from worldline.ticket import ticket_to_proto
from worldline.v1 import move_pb2, mover_pb2

_T = TypeVar("_T")
_BLOCK_INDEX = 1
_EPOCH = 1
#: A figure of each push: from the last byte until both ends had their digests.
EXPOSED_MS = "exposed_ms"
#: A figure of each push: from the go until the caller had the outcome, with every digest in it.
CALLER_MS = "caller_ms"

#: Where digests are computed, by the bench's word for it; empty: as the movers are set up.
PLACEMENTS = {
    "": move_pb2.VERIFICATION_UNSPECIFIED,
    "tail": move_pb2.VERIFICATION_TAIL,
    "pipelined": move_pb2.VERIFICATION_PIPELINED,
    "sequential": move_pb2.VERIFICATION_SEQUENTIAL,
    "off": move_pb2.VERIFICATION_OFF,
}


@dataclass(frozen=True, slots=True)
class Landed:
    """A push that ended well: its slot at the target, and the source mover's figures of it."""

    slot: move_pb2.SlotRef
    stats: move_pb2.PushStats
    #: From the go until the outcome was here, on the bench's own clock.
    caller_s: float

    @property
    def seconds(self) -> float:
        """From the go until the target had verified, and promoted; on the source's clock."""
        return float(self.stats.total_ms) / 1e3


class Route:
    """A live slot with the payload at one of two movers, and pushes of it to the other."""

    def __init__(self, movers: Movers, payload: Payload) -> None:
        self._movers = movers
        self._payload = payload
        self._at = SOURCE
        self._slot: move_pb2.SlotRef | None = None

    async def open(self) -> None:
        """Start the movers and put the payload into a slot of the first, unless that was done."""
        if self._slot is not None:
            return
        await self._movers.start()
        extent_bytes = self._payload.layout.extent_bytes
        self._slot = await self._movers.allocate(SOURCE, extent_bytes)
        mapped = await self._movers.map(SOURCE, self._slot)
        try:
            self._payload.copy_to(mapped.buffer())
            mapped.settle()
        finally:
            mapped.close()

    async def close(self) -> None:
        """End the movers."""
        self._slot = None
        await self._movers.stop()

    async def push(self, placement: str = "") -> Landed:
        """A push; what landed is looked at afterwards, verified or not, and let go again.

        Raises:
            Failed: it did not end well, or what landed is not the payload.
        """
        landed = await self._push(placement)
        await self._movers.release(OTHER[self._at], landed.slot)
        return landed

    async def move(self) -> Landed:
        """A push after which the payload lives at the other mover.

        Raises:
            Failed: as `push`.
        """
        landed = await self._push("")
        if self._slot is not None:
            await self._movers.release(self._at, self._slot)
        self._at, self._slot = OTHER[self._at], landed.slot
        return landed

    async def _push(self, placement: str) -> Landed:
        layout, there = self._payload.layout, OTHER[self._at]
        signed = self._movers.office.ticket(layout, SESSION, self._at, there)
        ticket = ticket_to_proto(signed)
        reserve = mover_pb2.ReserveRequest(ticket=ticket, layout=layout_to_proto(layout))
        reserved = await self._movers.call(there, "Reserve", reserve)
        order = mover_pb2.PushOrder(
            ticket=ticket,
            session_id=SESSION,
            epoch=_EPOCH,
            layout=layout_to_proto(layout),
            source_slot=self._slot,
            reservation_id=reserved.reservation_id,
            target_mover_address=self._movers.address(there),
            verification=move_pb2.Verification.Name(PLACEMENTS[placement]),
            promote=placement != "off",
        )
        try:
            await self._spoil(there, reserved.slot)
            outcome, caller_s = await self._carry_out(order)
            await self._check(there, reserved.slot)
        except BaseException:
            await self._movers.release(there, reserved.slot)
            raise
        return Landed(reserved.slot, outcome.push_stats, caller_s)

    async def _carry_out(self, order: mover_pb2.PushOrder) -> tuple[mover_pb2.PushOutcome, float]:
        push = PushCall(self._movers.stub(self._at), order, CALL_S)
        try:
            await push.arm()
            went_s = time.monotonic()
            await push.go(_BLOCK_INDEX, self._payload.layout)
            return await push.outcome(), time.monotonic() - went_s
        finally:
            await push.close()

    async def _spoil(self, node: str, slot: move_pb2.SlotRef) -> None:
        mapped = await self._movers.map(node, slot)
        try:
            spoil(mapped.buffer()[: self._payload.layout.extent_bytes])
            mapped.settle()
        finally:
            mapped.close()

    async def _check(self, node: str, slot: move_pb2.SlotRef) -> None:
        mapped = await self._movers.map(node, slot)
        try:
            landed = digest_from(self._payload.layout, mapped.digest(self._payload.layout))
        finally:
            mapped.close()
        if landed != self._payload.digest:
            raise Failed("what landed is not what was sent")


class RouteContestant(Contestant):
    """Base of contestants over a route; several may share one."""

    def __init__(
        self, name: str, runner: asyncio.Runner, route: Route, *, verified: bool = True
    ) -> None:
        super().__init__(name, verified=verified)
        self._runner = runner
        self._route = route

    def prepare(self) -> None:
        """See `Contestant.prepare`."""
        self._do(self._route.open())
        self.run()

    def close(self) -> None:
        """See `Contestant.close`."""
        self._runner.run(self._route.close())

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            return self._runner.run(work)
        except WorldlineError as error:
            raise Failed(f"{type(error).__name__}: {error}") from error


class Pushes(RouteContestant):
    """Pushes the payload there again and again.

    Verified: both ends digest while chunks move, and the clock stops when the target's word that
    the digests agree, and that it has promoted, is back at the source.
    """

    def __init__(
        self, name: str, runner: asyncio.Runner, route: Route, placement: str = ""
    ) -> None:
        super().__init__(name, runner, route, verified=placement != "off")
        self._placement = placement

    def run(self) -> float:
        """See `Contestant.run`."""
        landed = self._do(self._route.push(self._placement))
        stats = landed.stats
        self.figures = {EXPOSED_MS: stats.verify_tail_ms, CALLER_MS: landed.caller_s * 1e3}
        placed = move_pb2.Verification.Name(stats.verification).removeprefix("VERIFICATION_")
        self.note = (
            f"{placed.lower()}, {stats.chunks} chunks of {stats.chunk_bytes >> 20} MiB, window "
            f"{stats.window_chunks}, {', '.join(stats.lanes)}"
        )
        if stats.blank_bytes:
            self.note += f", {stats.blank_bytes:,} bytes of zeros stayed"
        return landed.seconds


class RoundTrips(RouteContestant):
    """Moves the payload there and back; the time is of both ways."""

    def run(self) -> float:
        """See `Contestant.run`."""
        there, back = self._do(self._route.move()), self._do(self._route.move())
        self.note = f"{there.seconds * 1e3:.2f} ms there, {back.seconds * 1e3:.2f} ms back"
        return there.seconds + back.seconds
