"""Parks: a state suspended from a GPU to pinned memory and resumed, beside raw pinned copies."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from bench.contestant import Contestant, Failed
from bench.movers import SESSION, SOURCE, Movers
from bench.payload import Payload, digest_from
from worldline.contract import DeterminismTier
from worldline.cuda.event import Event
from worldline.cuda.memory import DeviceMemory
from worldline.cuda.pinned import PinnedMemory
from worldline.cuda.stream import Stream
from worldline.errors import WorldlineError
from worldline.state.codec import manifest_to_proto
from worldline.state.manifest import Fingerprint, Manifest
from worldline.v1 import move_pb2, park_pb2

_T = TypeVar("_T")
_COPY_S = 30.0


class Desk:
    """A live slot with the payload at one mover, parked and brought back in turn."""

    def __init__(self, movers: Movers, payload: Payload) -> None:
        self._movers = movers
        self._payload = payload
        self._slot: move_pb2.SlotRef | None = None
        self._parks = 0

    async def open(self) -> None:
        """Start the mover and put the payload into a slot, unless that was done."""
        if self._movers.running:
            return
        await self._movers.start()
        slot = await self._movers.allocate(SOURCE, self._payload.layout.extent_bytes)
        mapped = await self._movers.map(SOURCE, slot)
        try:
            self._payload.copy_to(mapped.buffer())
            mapped.settle()
        finally:
            mapped.close()
        self._slot = slot

    async def close(self) -> None:
        """End the movers."""
        await self._movers.stop()

    async def suspend(self) -> park_pb2.ParkStats:
        """Park the slot in pinned memory and release it."""
        if self._slot is None:
            raise Failed("nothing to suspend: the last resume failed")
        self._parks += 1
        request = park_pb2.ParkRequest(
            park_id=self._park_id,
            manifest=manifest_to_proto(_manifest(self._payload)),
            slot=self._slot,
            kind=park_pb2.PARK_KIND_MEMORY,
        )
        stats: park_pb2.ParkStats = (await self._movers.call(SOURCE, "Park", request)).stats
        await self._movers.release(SOURCE, self._slot)
        self._slot = None
        return stats

    async def resume(self) -> park_pb2.ParkStats:
        """Bring the parked copy back into a slot, and look at what is there now."""
        request = park_pb2.UnparkRequest(park_id=self._park_id, session_id=SESSION)
        answer = await self._movers.call(SOURCE, "Unpark", request)
        drop = park_pb2.DropParkedRequest(park_id=self._park_id, session_id=SESSION)
        await self._movers.call(SOURCE, "DropParked", drop)
        mapped = await self._movers.map(SOURCE, answer.slot)
        try:
            found = digest_from(self._payload.layout, mapped.digest(self._payload.layout))
        finally:
            mapped.close()
        if found != self._payload.digest:
            raise Failed("what was resumed is not what was suspended")
        self._slot = answer.slot
        stats: park_pb2.ParkStats = answer.stats
        return stats

    @property
    def _park_id(self) -> str:
        return f"park-{self._parks}"


class _OnDesk(Contestant):
    """Base of the two contestants over a desk."""

    def __init__(self, name: str, runner: asyncio.Runner, desk: Desk) -> None:
        super().__init__(name, verified=True)
        self._runner = runner
        self._desk = desk

    def prepare(self) -> None:
        """See `Contestant.prepare`."""
        self._do(self._desk.open())
        self.run()

    def close(self) -> None:
        """See `Contestant.close`."""
        self._runner.run(self._desk.close())

    def _timed(self, work: Coroutine[Any, Any, park_pb2.ParkStats]) -> float:
        stats = self._do(work)
        self.note = f"copy {stats.copy_ms:.1f} ms, then verify {stats.verify_ms:.1f} ms"
        return float(stats.copy_ms + stats.verify_ms) / 1e3

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            return self._runner.run(work)
        except WorldlineError as error:
            raise Failed(f"{type(error).__name__}: {error}") from error


class Suspends(_OnDesk):
    """From the first byte until the parked copy is proven."""

    def run(self) -> float:
        """See `Contestant.run`."""
        return self._timed(self._desk.suspend())


class Resumes(_OnDesk):
    """From the first byte until the slot is proven. Takes its turn after `Suspends`."""

    def run(self) -> float:
        """See `Contestant.run`."""
        return self._timed(self._desk.resume())


class PinnedCopies(Contestant):
    """One copy of the extent between a GPU and pinned memory; on the GPU's clock."""

    def __init__(self, name: str, payload: Payload, device_index: int, *, outward: bool) -> None:
        super().__init__(name)
        self._payload = payload
        self._index = device_index
        self._outward = outward
        self._close: list[Any] = []

    def prepare(self) -> None:
        """See `Contestant.prepare`."""
        extent_bytes = self._payload.layout.extent_bytes
        self._stream = Stream(self._index)
        self._device = DeviceMemory(extent_bytes, self._index)
        self._pinned = PinnedMemory(extent_bytes, self._index)
        self._close = [self._pinned, self._device, self._stream]
        self._begin, self._end = (Event(self._index, timed=True) for _ in range(2))
        self.run()

    def run(self) -> float:
        """See `Contestant.run`."""
        ends = (self._pinned.address, self._device.address)
        target, source = ends if self._outward else ends[::-1]
        self._stream.record(self._begin)
        self._stream.copy(target, source, self._payload.layout.extent_bytes)
        self._stream.record(self._end)
        self._end.wait(_COPY_S)
        return self._end.since_ms(self._begin) / 1e3

    def close(self) -> None:
        """See `Contestant.close`."""
        for one in self._close:
            one.close()
        self._close = []


def _manifest(payload: Payload) -> Manifest:
    return Manifest(
        session_id=SESSION,
        epoch=1,
        block_index=0,
        layout=payload.layout,
        fingerprint=Fingerprint.of({"purpose": "bench"}),
        determinism_tier=DeterminismTier.T0_BITWISE,
    )
