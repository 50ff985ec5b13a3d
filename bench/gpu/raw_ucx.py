"""Raw UCX between GPUs: the mover's transport and chunks, and nothing of the mover above them.

No digest, no grant, no verdict: every chunk is posted at once, and the clock stops when the last
one has landed. Option `chunk_bytes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bench.gpu.side import DeviceSide
from services.mover.chunking import CHUNK_INDEX_BITS, ChunkPlan
from services.mover.latency import prefer_latency
from services.mover.transport.base import Buffer, Endpoint, Request
from services.mover.transport.ucx import UcxTransport
from worldline.state.digest import GRANULE_BYTES


class _Ucx(DeviceSide):
    """Both sides: a transport, and an endpoint to the other."""

    def prepare(self) -> str:
        super().prepare()
        prefer_latency()
        self._runner = asyncio.Runner()
        self._transport = UcxTransport(cuda_devices=(self.index,))
        self._runner.run(self._transport.start())
        self._runner.run(self._transport.register(self.memory.whole))
        extent_bytes = self.at.layout.extent_bytes
        self._plan = ChunkPlan(extent_bytes, int(self.at.options["chunk_bytes"]), GRANULE_BYTES)
        self._number = 0
        self._posted: list[Request] = []
        return self._transport.address.hex()

    def connect(self, peer: str) -> None:
        self._endpoint: Endpoint = self._runner.run(self._transport.connect(bytes.fromhex(peer)))

    def arm(self) -> None:
        self._number += 1

    def _tag(self, chunk_index: int) -> int:
        return (self._number << CHUNK_INDEX_BITS) + chunk_index

    async def _post(self, post: Callable[[Buffer, int], Request]) -> None:
        self._posted = [
            post(self.memory.part(chunk.offset_bytes, chunk.size_bytes), self._tag(chunk.index))
            for chunk in self._plan
        ]

    async def _wait(self) -> None:
        for request in self._posted:
            await request.wait()

    def close(self) -> None:
        self._runner.run(self._transport.unregister(self.memory.whole))
        self._runner.run(self._transport.stop())
        self._runner.close()
        super().close()


class Source(_Ucx):
    """Sends."""

    def run(self) -> None:
        self._runner.run(self._send())

    async def _send(self) -> None:
        await self._post(self._endpoint.send)
        await self._wait()


class Target(_Ucx):
    """Receives; its receives are posted before the word to go, as a mover's are."""

    def arm(self) -> None:
        super().arm()
        self._runner.run(self._post(self._endpoint.receive))

    def run(self) -> None:
        self._runner.run(self._wait())


SIDES = {"source": Source, "target": Target}
