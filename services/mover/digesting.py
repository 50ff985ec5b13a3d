"""Digesting: one end's digests of a slot, chunk by chunk while others move, or at rest.

Digests are computed where the bytes are: those of host memory by the thread that moves them, those
of a device by a kernel on a stream of its own.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from functools import partial

import numpy as np

from services.mover.chunking import Chunk
from services.mover.crossing import settled
from services.mover.memory.base import Granules, SlotMemory
from services.mover.memory.cuda import CudaMemory
from services.mover.memory.host import HostMemory
from services.mover.transport.base import Reader
from worldline.cuda.digest import CudaDigester
from worldline.cuda.zeros import Look
from worldline.errors import InvariantBroken
from worldline.state.digest import GRANULE_BYTES, Digester
from worldline.state.gf2 import Uint64s
from worldline.state.layout import Layout

#: A device has usually digested the last chunk by the time anybody asks, and a world stands still
#: meanwhile: a thread's hand-over costs as much as the digest. Where others keep the device busy it
#: takes longer, and then a thread waits.
_POLL_S = 0.002
#: Granules that one host thread reads at rest: long enough that a task costs nothing.
_RUN_GRANULES = 16


class SlotDigest(ABC):
    """Digests one layout's extent in one slot. Use once."""

    @abstractmethod
    def reader(self, chunk: Chunk) -> Reader | None:
        """What digests a chunk piece by piece while it moves.

        None where `read` digests it instead, once it has moved.
        """

    @abstractmethod
    def read(self, chunk: Chunk) -> None:
        """Begin to digest a chunk, which nobody may write from now on."""

    @abstractmethod
    def read_zeros(self, chunks: Sequence[Chunk]) -> None:
        """As `read`, of chunks that were zeros when somebody looked: see `written`. Call once."""

    @property
    @abstractmethod
    def written(self) -> frozenset[int]:
        """Indices of chunks of `read_zeros` that are not all zeros, by their every byte.

        Known with `segment_crcs`.
        """

    @abstractmethod
    async def segment_crcs(self) -> Uint64s:
        """Wait for what was begun; the CRC of every segment of the layout.

        Raises:
            InvariantBroken: a granule was never read.
        """

    @abstractmethod
    async def settle(self) -> None:
        """Wait until nothing reads the memory any more, well or not."""


class HostDigest(SlotDigest):
    """By whoever moves the bytes; at rest by threads of a pool."""

    def __init__(self, layout: Layout, memory: SlotMemory, pool: Executor) -> None:
        self._digester = Digester(layout)
        self._extent_bytes = layout.extent_bytes
        self._memory = memory
        self._pool = pool
        self._reading: list[asyncio.Future[None]] = []
        self._written: set[int] = set()

    def reader(self, chunk: Chunk) -> Reader:
        """See `SlotDigest.reader`."""

        def read(offset_bytes: int, size_bytes: int) -> None:
            first, behind = divmod(offset_bytes, GRANULE_BYTES)
            if behind:
                raise InvariantBroken(f"a piece begins {behind} bytes behind a granule's start")
            self._update(
                chunk.first_granule + first,
                -(-size_bytes // GRANULE_BYTES),
                chunk.offset_bytes + offset_bytes,
                size_bytes,
            )

        return read

    def read(self, chunk: Chunk) -> None:
        """See `SlotDigest.read`."""
        update = partial(
            self._update,
            chunk.first_granule,
            chunk.granule_count,
            chunk.offset_bytes,
            chunk.size_bytes,
        )
        self._reading.append(asyncio.get_running_loop().run_in_executor(self._pool, update))

    def read_zeros(self, chunks: Sequence[Chunk]) -> None:
        """See `SlotDigest.read_zeros`. Zeros are compared, and need no digest besides."""
        loop = asyncio.get_running_loop()
        for chunk in chunks:
            self._reading.append(loop.run_in_executor(self._pool, self._compare, chunk))

    def _compare(self, chunk: Chunk) -> None:
        asked = _granules_of([chunk], self._extent_bytes)
        if np.array_equal(self._memory.zero_granules(self._extent_bytes, asked), asked):
            self._digester.update_zeros(chunk.first_granule, chunk.granule_count)
        else:
            self._written.add(chunk.index)
            self._update(
                chunk.first_granule, chunk.granule_count, chunk.offset_bytes, chunk.size_bytes
            )

    @property
    def written(self) -> frozenset[int]:
        """See `SlotDigest.written`."""
        return frozenset(self._written)

    def _update(
        self, first_granule: int, granule_count: int, offset_bytes: int, size_bytes: int
    ) -> None:
        view = self._memory.part(offset_bytes, size_bytes)
        if not isinstance(view, memoryview):
            raise InvariantBroken("host digests of memory that is not the host's")
        self._digester.update(first_granule, granule_count, view)

    async def segment_crcs(self) -> Uint64s:
        """See `SlotDigest.segment_crcs`."""
        if self._reading:
            # Not `gather`: cancelled, it would take threads that still read for done.
            await asyncio.wait(self._reading)
        for reading in self._reading:
            reading.result()
        return self._digester.segment_crcs()

    async def settle(self) -> None:
        """See `SlotDigest.settle`."""
        await settled(self._reading)


class DeviceDigest(SlotDigest):
    """By kernels on the slot's device."""

    def __init__(self, layout: Layout, digester: CudaDigester, memory: CudaMemory) -> None:
        self._digester = digester
        self._extent_bytes = layout.extent_bytes
        self._memory = memory
        self._zeros: Sequence[Chunk] = ()
        self._look: Look | None = None
        self._written: frozenset[int] = frozenset()

    def reader(self, chunk: Chunk) -> None:
        """None: a kernel reads it, once it is there."""

    def read(self, chunk: Chunk) -> None:
        """See `SlotDigest.read`. Queues a kernel and returns."""
        part = self._memory.part(chunk.offset_bytes, chunk.size_bytes)
        self._digester.update(chunk.first_granule, chunk.granule_count, part)

    def read_zeros(self, chunks: Sequence[Chunk]) -> None:
        """See `SlotDigest.read_zeros`. Queues a kernel that looks, beside those that digest."""
        if chunks:
            self._zeros = chunks
            asked = _granules_of(chunks, self._extent_bytes)
            self._look = self._memory.look(self._extent_bytes, asked)
        for chunk in chunks:
            self.read(chunk)

    @property
    def written(self) -> frozenset[int]:
        """See `SlotDigest.written`."""
        return self._written

    async def segment_crcs(self) -> Uint64s:
        """See `SlotDigest.segment_crcs`."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _POLL_S
        while not self._is_idle:
            if loop.time() >= give_up_at:
                return await asyncio.to_thread(self._collect)
            await asyncio.sleep(0)
        return self._collect()

    @property
    def _is_idle(self) -> bool:
        return self._digester.is_idle and (self._look is None or self._look.is_done)

    def _collect(self) -> Uint64s:
        look = self._look
        if look is not None:
            zeros = look.found()
            look.close()
            self._look = None
            self._written = frozenset(
                chunk.index
                for chunk in self._zeros
                if not zeros[chunk.first_granule :][: chunk.granule_count].all()
            )
        return self._digester.segment_crcs()

    async def settle(self) -> None:
        """See `SlotDigest.settle`."""
        await asyncio.to_thread(self._wait)

    def _wait(self) -> None:
        try:
            self._digester.wait()
        finally:
            look = self._look
            if look is not None:
                look.wait()
                look.close()


def _granules_of(chunks: Iterable[Chunk], extent_bytes: int) -> Granules:
    """Which granules of an extent these chunks are."""
    granules = np.zeros(-(-extent_bytes // GRANULE_BYTES), np.bool_)
    for chunk in chunks:
        granules[chunk.first_granule : chunk.first_granule + chunk.granule_count] = True
    return granules


def slot_digest(layout: Layout, memory: SlotMemory, pool: Executor) -> SlotDigest:
    """The digest for the kind of memory that a slot rests in."""
    if isinstance(memory, CudaMemory):
        return DeviceDigest(layout, CudaDigester(layout, memory.index), memory)
    if isinstance(memory, HostMemory):
        return HostDigest(layout, memory, pool)
    raise InvariantBroken(f"no digest for {type(memory).__name__}")


async def digest_at_rest(layout: Layout, memory: SlotMemory, pool: Executor) -> Uint64s:
    """Read a slot that nobody writes; the CRC of every segment of the layout.

    When cancelled it returns only once nothing reads the memory any more.
    """
    digest = slot_digest(layout, memory, pool)
    for chunk in _runs(layout.extent_bytes, memory.device):
        digest.read(chunk)
    try:
        return await digest.segment_crcs()
    except asyncio.CancelledError:
        await digest.settle()
        raise


def _runs(extent_bytes: int, device: str) -> list[Chunk]:
    """The extent in pieces for several threads; in one piece for a device."""
    granules = -(-extent_bytes // GRANULE_BYTES)
    step = _RUN_GRANULES if device == "cpu" else max(1, granules)
    return [
        Chunk(
            index=index,
            offset_bytes=first * GRANULE_BYTES,
            size_bytes=min(step * GRANULE_BYTES, extent_bytes - first * GRANULE_BYTES),
            first_granule=first,
            granule_count=min(step, granules - first),
        )
        for index, first in enumerate(range(0, granules, step))
    ]
