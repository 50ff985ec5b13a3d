"""Slot queue: hands out a node's slots, and has probes give way to whoever needs theirs.

The shell around `givingway`. Who waits is served in the order of asking, on each device by itself,
by whichever slot is free first.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable

from services.mover.givingway import Answer, answer
from services.mover.slots import Shelf, SlotRef, SlotRole, SlotTable


class SlotQueue:
    """The queues of one node, one a device. Used from one event loop.

    `end_probe` gives a probe's slot up: FREE, or QUARANTINED while something may write to it.
    `within_s` is how long anybody waits for such a slot.
    """

    def __init__(
        self, slots: SlotTable, end_probe: Callable[[SlotRef], None], within_s: float
    ) -> None:
        self._slots = slots
        self._end_probe = end_probe
        self._within_s = within_s
        self._waiting: defaultdict[str, deque[asyncio.Future[None]]] = defaultdict(deque)
        slots.on_free(self._serve)

    async def take(
        self, session_id: str, extent_bytes: int, role: SlotRole, device: str = ""
    ) -> SlotRef:
        """A slot for a session on that device; on the first where it is empty.

        Raises:
            InvalidInput: this node has no slots there.
            CapacityExhausted: every slot is a session's, or a probe's was not quiet in time
                (NO_FREE_SLOT); too large a state (STATE_TOO_LARGE).
        """
        shelf = self._slots.fitting(extent_bytes, device)
        room = self._slots.room(shelf)
        found = answer(room, len(self._waiting[shelf.device]))
        if found is Answer.FULL:
            raise self._slots.full(shelf)
        if found is not Answer.TAKE:
            await self._wait(shelf, room.probing[0] if found is Answer.END_A_PROBE else None)
        return self._slots.allocate(session_id, extent_bytes, role, self._now(), shelf.device)

    def take_for_probe(self, probe_id: str, extent_bytes: int, device: str = "") -> SlotRef:
        """A SHADOW slot that gives way, on that device; on the first where it is empty.

        Raises:
            InvalidInput: this node has no slots there.
            CapacityExhausted: none is free (NO_FREE_SLOT); too large (STATE_TOO_LARGE).
        """
        shelf = self._slots.fitting(extent_bytes, device)
        ahead_count = len(self._waiting[shelf.device])
        if answer(self._slots.room(shelf), ahead_count, probes=True) is not Answer.TAKE:
            raise self._slots.full(shelf)
        return self._slots.allocate(
            probe_id, extent_bytes, SlotRole.SHADOW, self._now(), shelf.device, gives_way=True
        )

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values())

    async def _wait(self, shelf: Shelf, probe: SlotRef | None) -> None:
        """Until a slot of the shelf is free for this one; `probe` gives way first."""
        waiting = self._waiting[shelf.device]
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(told)
        try:
            if probe is not None:
                self._end_probe(probe)
            await self._until_told(told, shelf)
        except BaseException:
            # A slot that was to be this one's is the next one's.
            waiting.remove(told)
            self._serve(shelf.device)
            raise
        waiting.remove(told)

    async def _until_told(self, told: asyncio.Future[None], shelf: Shelf) -> None:
        try:
            async with asyncio.timeout(self._within_s):
                await told
        except TimeoutError:
            if told.cancelled():  # and not told at that very moment
                why = f"; that of a probe was not free within {self._within_s:g} s of its end"
                raise self._slots.full(shelf, why) from None

    def _serve(self, device: str) -> None:
        """As many as there are free slots, from the front: whoever is told takes its slot next."""
        free_count = self._slots.room(self._slots.shelf(device)).free_count
        for told in list(self._waiting[device])[:free_count]:
            if not told.done():
                told.set_result(None)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
