"""Data path: our own transport and transfer between two processes, without movers and gRPC.

Sides of a contestant (see `side`). Options: `lane`, `chunk_bytes` and `window_chunks` as in the
mover's settings; `verify`, `y` or `n`: whether both ends digest what they move. A run lasts until
the target has received everything and, where it verifies, both ends have their digests, which are
compared after each run.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from bench.side import Side, Surroundings
from services.mover.chunking import ChunkPlan
from services.mover.digesting import HostDigest
from services.mover.latency import prefer_latency
from services.mover.memory.base import Descriptor, SlotMemory
from services.mover.transfer import Direction, Transfer
from services.mover.transport.lanes import Lane
from services.mover.transport.ucx import UcxTransport
from worldline.state.digest import GRANULE_BYTES
from worldline.state.gf2 import Uint64s

_TAGS_PER_RUN = 1 << 24


class _Lent(SlotMemory):
    """The bench's memory, as a slot's."""

    device = "cpu"

    def __init__(self, at: Surroundings) -> None:
        self._at = at
        self.size_bytes = at.view.nbytes

    def prepare(self, extent_bytes: int, *, zero: bool) -> None:
        """Its pages are there."""

    def part(self, offset_bytes: int, size_bytes: int) -> memoryview:
        """A view of the bytes [offset, offset + size)."""
        return self._at.view[offset_bytes : offset_bytes + size_bytes]

    def write(self, offset_bytes: int, data: memoryview) -> None:
        """Copy host bytes to [offset, offset + size)."""
        self._at.view[offset_bytes : offset_bytes + data.nbytes] = data

    def export(self) -> Descriptor:
        """Its memory file."""
        return Descriptor(self._at.descriptor)

    def close(self) -> None:
        """It is not ours."""


class _End(Side):
    """Both sides: a transport, an endpoint, and one transfer a run."""

    direction: Direction

    def prepare(self) -> str:
        options = self.at.options
        prefer_latency()
        self._runner = asyncio.Runner()
        self._pool = ThreadPoolExecutor(1)
        self._memory = _Lent(self.at)
        self._transport = UcxTransport(lane=Lane(options["lane"]))
        self._plan = ChunkPlan(self.at.view.nbytes, int(options["chunk_bytes"]), GRANULE_BYTES)
        self._tag = 0
        return self._runner.run(self._start()).hex()

    async def _start(self) -> bytes:
        await self._transport.start()
        await self._transport.register(self._memory.whole, self.at.descriptor)
        return self._transport.address

    def connect(self, peer: str) -> None:
        connecting = self._transport.connect(bytes.fromhex(peer))
        self._endpoint = self._runner.run(connecting)

    def arm(self) -> None:
        self._tag += _TAGS_PER_RUN
        self._runner.run(self._make())

    async def _make(self) -> None:
        verify = self.at.options["verify"] == "y"
        self._transfer = Transfer(
            self._endpoint,
            self.direction,
            self._memory,
            self._plan,
            window_chunks=int(self.at.options["window_chunks"]),
            tag_base=self._tag,
            digest=(HostDigest(self.at.layout, self._memory, self._pool) if verify else None),
        )
        if self.direction is Direction.RECEIVE:
            self._transfer.start()

    def run(self) -> None:
        self._crcs = self._runner.run(self._transfer.run(lambda _: None))

    def clear(self) -> None:
        """Compare what both ends read."""
        if self._crcs is None:
            return
        own = self._crcs.tobytes()
        self.at.link.sendall(own)
        theirs = b""
        while len(theirs) < len(own):
            theirs += self.at.link.recv(len(own) - len(theirs)) or _cut_off()
        if theirs != own:
            raise ConnectionError("the ends have other digests")

    def close(self) -> None:
        self._runner.run(self._transport.stop())
        self._runner.close()
        self._pool.shutdown()

    _crcs: Uint64s | None = None


class Source(_End):
    """Sends."""

    direction = Direction.SEND

    def run(self) -> None:
        super().run()
        if self._crcs is not None:
            self.at.tell()  # the target's clock runs until both ends have their digests


class Target(_End):
    """Receives."""

    direction = Direction.RECEIVE

    def run(self) -> None:
        super().run()
        if self._crcs is not None:
            self.at.hear()


def _cut_off() -> bytes:
    raise ConnectionError("the other side is gone")


SIDES = {"source": Source, "target": Target}
