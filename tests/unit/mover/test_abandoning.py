"""A transfer that is given up: what ends meanwhile, well or not, begins nothing any more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from services.mover.chunking import Chunk, ChunkPlan
from services.mover.digesting import SlotDigest
from services.mover.memory.host import HostMemory
from services.mover.transfer import Direction, Transfer
from services.mover.transport.base import Buffer, Endpoint, Reader, Request
from tests.unit.mover.cluster import MEBIBYTE
from worldline.errors import TransferFailed
from worldline.state.gf2 import Uint64s

EXTENT_BYTES = 4 * MEBIBYTE


class DeviceLike(SlotDigest):
    """Reads what has landed, as a device does, and knows when it was settled."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def reader(self, chunk: Chunk) -> Reader | None:
        return None

    def read(self, chunk: Chunk) -> None:
        self.calls.append(f"read {chunk.index}")

    def read_zeros(self, chunks: Sequence[Chunk]) -> None:
        raise AssertionError("it receives")

    @property
    def written(self) -> frozenset[int]:
        return frozenset()

    async def segment_crcs(self) -> Uint64s:
        raise AssertionError("nothing has landed")

    async def settle(self) -> None:
        await asyncio.to_thread(self.calls.append, "settled")


class Landing(Endpoint):
    """Of what is in flight when it is aborted, the first request still ends well."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    @property
    def alive(self) -> bool:
        return True

    def send(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        raise AssertionError("it receives")

    def receive(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        self.requests.append(Request("receive", tag, buffer.nbytes))
        return self.requests[-1]

    def lanes(self) -> tuple[str, ...]:
        return ()

    async def close(self) -> None:
        await self.abort()

    async def abort(self) -> None:
        for index, request in enumerate(self.requests):
            request.end(TransferFailed("aborted", reason="CANCELLED") if index else None)


async def test_a_chunk_that_lands_while_a_transfer_is_given_up_is_not_digested() -> None:
    memory = HostMemory("wl-test-abandoned", EXTENT_BYTES)
    digest, endpoint = DeviceLike(), Landing()
    transfer = Transfer(
        endpoint,
        Direction.RECEIVE,
        memory,
        ChunkPlan(EXTENT_BYTES, MEBIBYTE, MEBIBYTE),
        window_chunks=2,
        tag_base=0,
        digest=digest,
    )
    transfer.start()
    await transfer.abandon()
    await asyncio.sleep(0)
    assert digest.calls == ["settled"]
    assert len(endpoint.requests) == 2, "it went on"
    memory.close()
