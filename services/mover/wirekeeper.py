"""Wire keeper: who waits for a wire of this node, who holds one, and the timer that asks again.

The shell around `Wires`: every event is followed by a decision, and a task makes those that time
alone brings. Used from one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from services.mover.wires import Granted, Refused, WireDirection, Wires
from services.mover.wirewait import WireWait
from worldline.errors import CapacityExhausted
from worldline.telemetry import instruments, span
from worldline.ticket import TicketClaims

T = TypeVar("T")

#: A wait that ended without a forecast: nobody is known to be done sooner.
_RETRY_MS = 1000
_IO_DIRECTIONS = {WireDirection.INTO: "receive", WireDirection.OUT_OF: "transmit"}
_WAY = {WireDirection.INTO: "into", WireDirection.OUT_OF: "out of"}


@dataclass(frozen=True, slots=True)
class KeptWire:
    """A wire as an operator wants to see it. Durations in seconds.

    `remaining_s`: until the end of its lease where it is held, else until its deadline; None where
    it has none.
    """

    claims: TicketClaims
    held: bool
    waited_s: float
    remaining_s: float | None


@dataclass(slots=True)
class _Kept:
    claims: TicketClaims
    told: asyncio.Future[None]
    #: Fails when a turn is taken away again before the peer has granted it.
    recalled: asyncio.Future[None]
    lease_until_s: float | None = None


class WireKeeper:
    """Hands out one node's wires."""

    def __init__(self, wires: Wires) -> None:
        self._wires = wires
        self._kept: dict[str, _Kept] = {}
        self._sooner = asyncio.Event()
        #: When the timer looks again by itself.
        self._looks_s = math.inf

    async def take(self, wait: WireWait, claims: TicketClaims) -> None:
        """Wait for a wire. Whoever has it gives it back; who is refused or cancelled has none.

        Raises:
            CapacityExhausted: it would come too late (WIRE_TOO_LATE).
            InvalidInput: from this node to itself.
        """
        wire_id = wait.ask.wire_id
        asked_s = self._now()
        self._wires.ask(wait.ask, asked_s)
        loop = asyncio.get_running_loop()
        kept = _Kept(claims, loop.create_future(), loop.create_future())
        self._kept[wire_id] = kept
        try:
            self._decide()
            if kept.told.done():  # mostly: nobody else is here
                kept.told.result()
                return
            way = wait.ask.direction.value
            with span("mover.wire_wait", move_id=claims.move_id, way=way):
                async with asyncio.timeout_at(wait.until_s):
                    await kept.told
        except TimeoutError:
            self.give_back(wire_id)
            raise self._too_late(wait) from None
        except BaseException:
            if kept.told.done() and not kept.told.cancelled():
                kept.told.exception()  # seen, also where a cancellation came with it
            self.give_back(wire_id)
            raise
        finally:
            waited_ms = (self._now() - asked_s) * 1e3
            instruments().wire_waited(waited_ms, _IO_DIRECTIONS[wait.ask.direction])

    async def until_granted(self, wire_id: str, asking: Coroutine[Any, Any, T]) -> T:
        """Ask the peer, with a turn of this node; bulk may lose the turn meanwhile.

        Raises:
            CapacityExhausted: it did (WIRE_TOO_LATE); or what `asking` raises.
        """
        recalled = self._kept[wire_id].recalled
        asked = asyncio.ensure_future(asking)
        either: set[asyncio.Future[Any]] = {asked, recalled}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not asked.done():
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
            elif not asked.cancelled():
                asked.exception()  # seen, also where a recall goes first
        # Nothing yields between here and the caller's `confirm`.
        if recalled.done():
            recalled.result()
        return asked.result()

    def confirm(self, wire_id: str, lease_until_s: float) -> None:
        """The peer has granted a wire out of this node.

        Raises:
            CapacityExhausted: the turn was taken away before (WIRE_TOO_LATE).
        """
        kept = self._kept.get(wire_id)
        if kept is not None and kept.recalled.done():
            kept.recalled.result()
        self._wires.confirm(wire_id, self._now())
        self.lease(wire_id, lease_until_s)
        self._decide()

    def lease(self, wire_id: str, until_s: float) -> None:
        """Its holder must be done by then (loop time)."""
        kept = self._kept.get(wire_id)
        if kept is not None:
            kept.lease_until_s = until_s

    def give_back(self, wire_id: str) -> None:
        """Held, waiting or neither: it is not from now on."""
        if self._kept.pop(wire_id, None) is not None:
            self._wires.end(wire_id, self._now())
            self._decide()

    async def run(self) -> None:
        """Decide whenever time alone may have changed something. Runs until it is cancelled."""
        while True:
            self._sooner.clear()
            next_s = self._wires.next_decision_s()
            self._looks_s = math.inf if next_s is None else next_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(next_s):
                    await self._sooner.wait()
            self._decide()

    def listing(self) -> tuple[KeptWire, ...]:
        """All wires, in the order of asking."""
        now_s = self._now()
        return tuple(
            KeptWire(
                kept.claims,
                standing.held,
                standing.waited_s,
                _remaining_s(kept.lease_until_s, standing.remaining_s, now_s),
            )
            for standing in self._wires.standings(now_s)
            if (kept := self._kept.get(standing.ask.wire_id)) is not None
        )

    def census(self) -> dict[str, int]:
        """What is held and who waits."""
        return {"wires_held": self._wires.held_count, "wires_waiting": self._wires.waiting_count}

    def _decide(self) -> None:
        for decision in self._wires.decide(self._now()):
            kept = self._kept[decision.wire_id]
            if kept.told.done():
                # Its turn is taken away; or its waiter is cancelled, and gives back what it has
                # not seen.
                if isinstance(decision, Refused):
                    kept.recalled.set_exception(_recall(decision, kept.claims))
                    kept.recalled.exception()  # seen, also where nobody looks
                continue
            if isinstance(decision, Granted):
                kept.told.set_result(None)
            else:
                kept.told.set_exception(_refusal(decision, kept.claims))
        next_s = self._wires.next_decision_s()
        if next_s is not None and next_s < self._looks_s:
            self._looks_s = next_s
            self._sooner.set()

    def _too_late(self, wait: WireWait) -> CapacityExhausted:
        way = _WAY[wait.ask.direction]
        return CapacityExhausted(
            f"the wire {way} this node was not free before the ticket ran out",
            reason="WIRE_TOO_LATE",
            field="ticket.valid_for_ms",
            retry_after_ms=_RETRY_MS,
        )

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _refusal(refused: Refused, claims: TicketClaims) -> CapacityExhausted:
    numbers = refused.numbers
    return CapacityExhausted(
        f"the wire from {claims.source_node_id} to {claims.target_node_id} would come too late: "
        f"it has been waited for {numbers['waited_ms']:.1f} ms and would be free in "
        f"{numbers['would_wait_ms']:.1f} ms, behind {numbers['ahead']:.0f} others; the move takes "
        f"{numbers['move_ms']:.1f} ms and could have waited {numbers['may_wait_ms']:.1f} ms more",
        reason="WIRE_TOO_LATE",
        field="ticket.horizon_ms",
        retry_after_ms=round(numbers["retry_after_ms"]),
    )


def _recall(refused: Refused, claims: TicketClaims) -> CapacityExhausted:
    return CapacityExhausted(
        f"the bulk move from {claims.source_node_id} to {claims.target_node_id} gave way to an "
        f"interactive one before its wire was granted; it had waited for "
        f"{refused.numbers['waited_ms']:.1f} ms",
        reason="WIRE_TOO_LATE",
        field="ticket.bulk",
        retry_after_ms=round(refused.numbers["retry_after_ms"]),
    )


def _remaining_s(
    lease_until_s: float | None, until_deadline_s: float, now_s: float
) -> float | None:
    if lease_until_s is not None:
        return max(0.0, lease_until_s - now_s)
    return None if math.isinf(until_deadline_s) else max(0.0, until_deadline_s)
