"""Transfer: one end's half of a push. Posts chunks through a window and digests them in threads.

The sending end digests a chunk while it and later ones move; the receiving end as soon as a chunk
has landed, while later ones land. Verification stays off the receive path: no chunk waits for a
digest before the next is posted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from enum import Enum

from services.mover.chunking import Chunk, ChunkPlan, Window
from services.mover.transport.base import Endpoint, Request
from worldline.errors import TransferFailed, WorldlineError
from worldline.state.digest import Digester
from worldline.state.manifest import Digests


class Direction(Enum):
    """Which end this is."""

    SEND = "send"
    RECEIVE = "receive"


class Transfer:
    """One run over every chunk of a plan. Use once."""

    def __init__(
        self,
        endpoint: Endpoint,
        direction: Direction,
        view: memoryview,
        plan: ChunkPlan,
        *,
        window_chunks: int,
        tag_base: int,
        digester: Digester | None,
        pool: Executor,
    ) -> None:
        self._endpoint = endpoint
        self._direction = direction
        self._view = view
        self._plan = plan
        self._window = Window(len(plan), window_chunks)
        self._tag_base = tag_base
        self._digester = digester
        self._pool = pool
        self._posted: dict[int, Request] = {}
        self._digesting: list[asyncio.Future[None]] = []
        #: Bytes whose requests have ended well.
        self.moved_bytes = 0
        #: Loop time at which the last chunk's request ended.
        self.moved_at = 0.0
        #: Time from then until the last digest was there.
        self.tail_ms = 0.0

    def start(self) -> None:
        """Post the first window: a receiver does so before it grants the wire."""
        for index in self._window.to_post():
            self._post(self._plan.chunk(index))

    async def run(self, on_progress: Callable[[int], None]) -> Digests | None:
        """Move every chunk; the digests, unless verification is off.

        `on_progress` gets the bytes moved so far, after each chunk.

        Raises:
            TransferFailed: any request failed. Others may still be running: `abandon`.
        """
        loop = asyncio.get_running_loop()
        self.start()
        while not self._window.complete:
            await asyncio.wait(
                [request.ended for request in self._posted.values()],
                return_when=asyncio.FIRST_COMPLETED,
            )
            self._collect(on_progress)
            self.start()
        self.moved_at = loop.time()
        await asyncio.gather(*self._digesting)
        self.tail_ms = (loop.time() - self.moved_at) * 1e3
        if self._digester is None:
            return None
        return await loop.run_in_executor(self._pool, self._digester.digests)

    async def abandon(self) -> None:
        """End what is in flight. Returns when nothing touches the memory any more."""
        await self._endpoint.abort()
        for request in self._posted.values():
            await request.settled()
        await asyncio.gather(*self._digesting, return_exceptions=True)

    def _post(self, chunk: Chunk) -> None:
        part = self._part(chunk)
        post = self._endpoint.send if self._direction is Direction.SEND else self._endpoint.receive
        self._posted[chunk.index] = post(part, self._tag_base + chunk.index)
        if self._direction is Direction.SEND:
            self._digest(chunk)

    def _collect(self, on_progress: Callable[[int], None]) -> None:
        for index, request in list(self._posted.items()):
            if not request.terminal:
                continue
            if request.error is not None:
                raise TransferFailed(
                    f"chunk {index} of {len(self._plan)}: {request.error.message}",
                    reason=request.error.reason,
                )
            chunk = self._plan.chunk(index)
            del self._posted[index]
            self._window.ended(index)
            self.moved_bytes += chunk.size_bytes
            if self._direction is Direction.RECEIVE:
                self._digest(chunk)
            on_progress(self.moved_bytes)

    def _digest(self, chunk: Chunk) -> None:
        if self._digester is None:
            return
        loop = asyncio.get_running_loop()
        self._digesting.append(
            loop.run_in_executor(
                self._pool,
                self._digester.update,
                chunk.first_granule,
                chunk.granule_count,
                self._part(chunk),
            )
        )

    def _part(self, chunk: Chunk) -> memoryview:
        return self._view[chunk.offset_bytes : chunk.offset_bytes + chunk.size_bytes]


class Abort:
    """Why a transfer was given up; the first cause stays. Waiters are told at once."""

    def __init__(self) -> None:
        self.cause: WorldlineError | None = None
        self._told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def told(self) -> asyncio.Future[None]:
        """Done once there is a cause; for `asyncio.wait`."""
        return self._told

    def tell(self, cause: WorldlineError) -> None:
        """Give the cause; later ones change nothing."""
        if self.cause is None:
            self.cause = cause
            self._told.set_result(None)

    def check(self) -> None:
        """Raise the cause, if there is one."""
        if self.cause is not None:
            raise self.cause
