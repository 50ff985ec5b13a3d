"""Staging: decides when device memory has to take the way through pinned memory, and owns that.

Lanes differ in what they carry. CUDA IPC copies between GPUs of one host, RDMA reads and writes
GPU memory where the driver gives it to the network card (GPUDirect); TCP, POSIX and CMA carry host
memory only. The pinned buffers are taken once, at start, and their number bounds what staging can
ever hold: a transfer that leaves waits for buffers, one that arrives is refused.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from services.mover.memory.copier import CudaCopier
from services.mover.staged import Copier, Ring, StagedEndpoint
from services.mover.stock import Stock
from services.mover.transport.base import Endpoint
from services.mover.transport.ucxendpoint import IN_PLACE
from worldline.cuda.pinned import PinnedMemory
from worldline.devicename import CPU, cuda_index

#: The largest chunk that is staged, and the size of each pinned buffer. Every mover has the same,
#: so that either end of a transfer can keep to what the other is able to stage.
STAGED_CHUNK_BYTES = 16 << 20
#: The largest chunk that one core copies from the other process's memory. The sender digests it
#: meanwhile, so that one of them finds it in the cache that their cores share, if it fits: 32 MiB
#: take a quarter longer to copy in place. Each chunk costs a turn of both ends, so smaller ones
#: lose more than they save.
PULLED_CHUNK_BYTES = 8 << 20
#: While one is copied the other is on the wire.
BUFFERS_PER_RING = 2

_GPUDIRECT = (
    Path("/sys/module/nvidia_peermem/version"),
    Path("/sys/kernel/mm/memory_peers/nv_mem/version"),
)
#: Lanes by which the receiver's core copies from the sender's memory, once.
_PULLING = (IN_PLACE, "cma/")
_RDMA = ("rc_", "dc_", "ud_", "rc/", "dc/", "ud/")


class Pinned(Protocol):
    """Memory that devices copy from and to directly."""

    @property
    def view(self) -> memoryview:
        """All bytes."""

    def close(self) -> None:
        """Give it back."""


def gpudirect(
    environment: dict[str, str] | None = None, modules: Sequence[Path] = _GPUDIRECT
) -> bool:
    """Whether UCX's RDMA lanes take GPU memory here: by the files that UCX itself looks for.

    See uct_ib_md_check_gpudirect_driver in UCX's ib_md.c. `UCX_IB_GPU_DIRECT_RDMA=n` forbids it.
    """
    variables = os.environ if environment is None else environment
    if variables.get("UCX_IB_GPU_DIRECT_RDMA", "try").lower() in ("n", "no", "0", "off"):
        return False
    return any(path.exists() for path in modules)


def needs_staging(own: str, peer: str, lanes: tuple[str, ...], *, rdma_reaches_gpus: bool) -> bool:
    """Whether this end stages its memory on `own` towards or from memory on `peer`. Pure.

    Devices by name; lanes as `Endpoint.lanes` says them.
    """
    if own == CPU:
        return False
    if rdma_reaches_gpus and any(lane.startswith(_RDMA) for lane in lanes):
        return False
    return peer == CPU or not any(lane.startswith("cuda_ipc/") for lane in lanes)


def largest_chunk(own: str, peer: str, lanes: tuple[str, ...]) -> int | None:
    """The most bytes of a chunk over these lanes; None where they set no limit.

    What the other end's RDMA reaches is not known here, so it counts as host memory only.
    """
    if own == peer == CPU and any(lane.startswith(_PULLING) for lane in lanes):
        return PULLED_CHUNK_BYTES
    own_stages = needs_staging(own, peer, lanes, rdma_reaches_gpus=gpudirect())
    peer_stages = needs_staging(peer, own, lanes, rdma_reaches_gpus=False)
    return STAGED_CHUNK_BYTES if own_stages or peer_stages else None


def cuda_staging(devices: tuple[str, ...], rings: int) -> Staging | None:
    """Staging for the GPUs among these devices; None where there are none.

    Raises:
        Unavailable: there is no such GPU.
    """
    indices = [index for name in devices if (index := cuda_index(name)) is not None]
    if not indices:
        return None
    copier = CudaCopier(devices)
    return Staging(copier, lambda size_bytes: PinnedMemory(size_bytes, indices[0]), rings=rings)


class Staging:
    """The pinned rings of one mover, and the endpoints that use them."""

    def __init__(
        self,
        copier: Copier,
        pin: Callable[[int], Pinned],
        *,
        rings: int,
        buffer_bytes: int = STAGED_CHUNK_BYTES,
        buffers_per_ring: int = BUFFERS_PER_RING,
    ) -> None:
        """`rings` transfers may be staged at once each way; `pin` makes one buffer."""
        self.copier = copier
        self.buffer_bytes = buffer_bytes
        self.leaving: Stock[Ring] = Stock(())
        self.arriving: Stock[Ring] = Stock(())
        self._pin = pin
        self._rings = rings
        self._buffers_per_ring = buffers_per_ring
        self._pinned: list[Pinned] = []
        self._threads = ThreadPoolExecutor(2 * rings, thread_name_prefix="staging")

    def start(self) -> None:
        """Take the buffers. Blocks.

        Raises:
            CapacityExhausted: the host gives no more pinned memory.
            Unavailable: it cannot be pinned.
        """
        for stock in (self.leaving, self.arriving):
            for _ in range(self._rings):
                stock.give(Stock([self._buffer() for _ in range(self._buffers_per_ring)]))

    @property
    def views(self) -> tuple[memoryview, ...]:
        """Every buffer, for registration."""
        return tuple(pinned.view for pinned in self._pinned)

    def close(self) -> None:
        """Give the buffers back, once the transport has stopped. Waits for copies under way."""
        self._threads.shutdown(wait=True)
        self.copier.close()
        for pinned in self._pinned:
            pinned.close()
        self._pinned = []

    def over(self, endpoint: Endpoint, own: str, peer: str) -> Endpoint:
        """The endpoint by which memory on `own` is to be moved: itself, where no staging is due."""
        reaches = gpudirect()
        if needs_staging(own, peer, endpoint.lanes(), rdma_reaches_gpus=reaches):
            return StagedEndpoint(endpoint, self)
        return endpoint

    async def unwrap(self, endpoint: Endpoint) -> Endpoint | None:
        """The transport's own endpoint, to be parked; None where requests failed: it is aborted."""
        if not isinstance(endpoint, StagedEndpoint):
            return endpoint
        if not endpoint.is_clean:
            await endpoint.abort()
            return None
        await endpoint.leave()
        return endpoint.inner

    async def copy(self, work: Callable[[], None]) -> None:
        """Run a copy in a thread, to its end, also when the caller is cancelled.

        Raises:
            WorldlineError: the device has failed, or was not done in time.
        """
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait({running})
            raise

    def census(self) -> dict[str, int]:
        """`staging_rings_free`, and `staging_bytes` that are pinned."""
        return {
            "staging_rings_free": len(self.leaving) + len(self.arriving),
            "staging_bytes": self.buffer_bytes * len(self._pinned),
        }

    def _buffer(self) -> memoryview:
        pinned = self._pin(self.buffer_bytes)
        self._pinned.append(pinned)
        return pinned.view
