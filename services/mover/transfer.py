"""Transfer: one end's half of a push. Posts chunks through a window and has them digested.

Where digests run is the push's choice (`Verification`): while later chunks move, or after the
last one. No chunk waits for a digest before the next is posted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum, IntEnum

from services.mover.blanks import NO_BLANKS, Blanks
from services.mover.chunking import Chunk, ChunkPlan, Window
from services.mover.digesting import SlotDigest
from services.mover.memory.base import SlotMemory
from services.mover.transport.base import Endpoint, Request
from worldline.errors import TransferFailed, WorldlineError
from worldline.state.gf2 import Uint64s


class Direction(Enum):
    """Which end this is."""

    SEND = "send"
    RECEIVE = "receive"


class Verification(IntEnum):
    """Where digests are computed; numbers as in move.proto."""

    PIPELINED = 1
    OFF = 2
    SEQUENTIAL = 3
    TAIL = 4

    @property
    def on(self) -> bool:
        """Whether there are digests at all."""
        return self is not Verification.OFF


class Transfer:
    """One run over every chunk of a plan. Use once."""

    def __init__(
        self,
        endpoint: Endpoint,
        direction: Direction,
        memory: SlotMemory,
        plan: ChunkPlan,
        *,
        window_chunks: int,
        tag_base: int,
        digest: SlotDigest | None,
        digest_last: bool = False,
        blanks: Blanks = NO_BLANKS,
    ) -> None:
        """`digest_last`: nothing is digested before the last byte has moved.

        Chunks that `blanks` cover stay behind; at the receiving end they are zeros already.
        """
        self.endpoint = endpoint
        self._direction = direction
        self._memory = memory
        self._plan = plan
        self._window = Window(len(plan), window_chunks)
        self._tag_base = tag_base
        self._digest = digest
        self._digest_last = digest_last
        self._is_read_on_the_way = False
        self._blanks_are_read = False
        #: Chunks that stay behind.
        self.blanks = tuple(blanks.chunks(plan))
        self._blank = frozenset(chunk.index for chunk in self.blanks)
        self._posted: dict[int, Request] = {}
        self._failure: Exception | None = None
        self._abandoned = False
        self._wake = asyncio.Event()
        #: The CRC of every segment of the layout, once digested; None when verification is off. At
        #: the sending end it may be there before the last byte has left.
        self.digested: asyncio.Future[Uint64s | None] = asyncio.get_running_loop().create_future()
        self._digesting: asyncio.Task[None] | None = None
        self.blank_bytes = sum(chunk.size_bytes for chunk in self.blanks)
        #: Bytes that travel; those of late chunks too, once they are known.
        self.wire_bytes = plan.extent_bytes - self.blank_bytes
        #: Chunks that travel.
        self.chunk_count = len(plan) - len(self.blanks)
        #: Bytes whose requests have ended well.
        self.moved_bytes = 0
        #: Loop time at which the last chunk's request ended.
        self.moved_at = 0.0
        #: Time from then until the last digest was there.
        self.tail_ms = 0.0

    def start(self) -> None:
        """Post the first window: a receiver does so before it grants the wire."""
        chunks = []
        while indices := self._window.to_post():
            for chunk in map(self._plan.chunk, indices):
                if chunk.index in self._blank:
                    self._window.ended(chunk.index)
                else:
                    self._post(chunk)
                    chunks.append(chunk)
        # After the posts: the wire waits for nothing.
        if not self._digest_last:
            self._read_blanks()
        if self._direction is not Direction.SEND:
            return
        for chunk in chunks:
            self._digest_early(chunk)
        if self._window.all_posted and self._digests_apart:
            self._begin_digest()

    async def run(self, on_progress: Callable[[int], None]) -> Uint64s | None:
        """Move every chunk; the CRCs of the layout's segments, unless verification is off.

        `on_progress` gets the bytes moved so far.

        Raises:
            TransferFailed: any request failed. Others may still be running: `abandon`.
        """
        loop = asyncio.get_running_loop()
        self.start()
        while not self._window.complete:
            await self._wake.wait()
            self._wake.clear()
            self._check()
            self.start()
            on_progress(self.moved_bytes)
        self._check()
        self.moved_at = loop.time()
        if self._digest is not None and self._digest_last:
            for chunk in self._plan:
                if chunk.index not in self._blank:
                    self._digest.read(chunk)
            self._read_blanks()
        if self._digesting is None:
            await self._finish_digest()
        crcs = await asyncio.shield(self.digested)
        self.tail_ms = 0.0 if crcs is None else (loop.time() - self.moved_at) * 1e3
        return crcs

    def _read_blanks(self) -> None:
        """Digest all that stays behind, once. The source looks at it again; the target wrote it."""
        if self._digest is None or self._blanks_are_read:
            return
        self._blanks_are_read = True
        if self._direction is Direction.SEND:
            self._digest.read_zeros(self.blanks)
        else:
            for chunk in self.blanks:
                self._digest.read(chunk)

    @property
    def written(self) -> frozenset[int]:
        """Of the chunks that stayed behind, at the source, those that are not zeros any more.

        By their every byte; known once `digested`. See `late_chunks`.
        """
        return frozenset() if self._digest is None else self._digest.written

    def post_late(self, chunks: Sequence[Chunk]) -> list[Request]:
        """Have chunks travel that stayed behind: the source wrote to them after it had looked."""
        self.blank_bytes -= sum(chunk.size_bytes for chunk in chunks)
        self.wire_bytes += sum(chunk.size_bytes for chunk in chunks)
        self.chunk_count += len(chunks)
        post = self.endpoint.send if self._direction is Direction.SEND else self.endpoint.receive
        for chunk in chunks:
            part = self._memory.part(chunk.offset_bytes, chunk.size_bytes)
            self._posted[chunk.index] = post(part, self._tag_base + chunk.index)
        return [self._posted[chunk.index] for chunk in chunks]

    async def land_late(self, chunks: Sequence[Chunk]) -> Uint64s | None:
        """Receive them, after all others; every segment's CRC with theirs.

        Raises:
            TransferFailed: any request failed. Others may still be running: `abandon`.
        """
        requests = self.post_late(chunks)
        for chunk, request in zip(chunks, requests, strict=True):
            await request.wait()
            self.moved_bytes += chunk.size_bytes
            if self._digest is not None:
                self._digest.read(chunk)
        return None if self._digest is None else await self._digest.segment_crcs()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _begin_digest(self) -> None:
        if self._digesting is None:
            self._digesting = asyncio.create_task(self._finish_digest(), name="digest")

    async def _finish_digest(self) -> None:
        """Have the result in `digested`, or why there is none."""
        try:
            crcs = None if self._digest is None else await self._digest.segment_crcs()
        except Exception as error:
            if not self.digested.done():
                self.digested.set_exception(error)
            return
        if not self.digested.done():
            self.digested.set_result(crcs)

    async def abandon(self) -> None:
        """End what is in flight. Returns when nothing touches the memory any more."""
        self._abandoned = True  # what still ends well is not digested
        await self.endpoint.abort()
        for request in self._posted.values():
            await request.settled()
        if self._digest is not None:
            await self._digest.settle()
        if self._digesting is not None:
            await self._digesting
            self.digested.exception()  # whoever wanted it has failed before

    @property
    def _digests_apart(self) -> bool:
        """Whether digests depend on nothing but the bytes at rest, and not on their way."""
        return not (self._digest is None or self._digest_last or self._is_read_on_the_way)

    def _post(self, chunk: Chunk) -> None:
        part = self._memory.part(chunk.offset_bytes, chunk.size_bytes)
        sends = self._direction is Direction.SEND
        post = self.endpoint.send if sends else self.endpoint.receive
        reader = None
        if self._digest is not None and not self._digest_last:
            reader = self._digest.reader(chunk)
        self._is_read_on_the_way = reader is not None
        request = post(part, self._tag_base + chunk.index, reader)
        self._posted[chunk.index] = request
        request.ended.add_done_callback(lambda _: self._note_end(chunk.index))

    def _note_end(self, index: int) -> None:
        """Digest a chunk as soon as it is there; `run` follows a turn of the loop later."""
        if self._abandoned:
            return
        try:
            self._collect(index)
        except Exception as error:
            self._failure = self._failure or error
        self._wake.set()

    def _collect(self, index: int) -> None:
        request = self._posted[index]
        if request.error is not None:
            raise TransferFailed(
                f"chunk {index} of {len(self._plan)}: {request.error.message}",
                reason=request.error.reason,
            )
        del self._posted[index]
        chunk = self._plan.chunk(index)
        self._window.ended(index)
        self.moved_bytes += chunk.size_bytes
        if self._direction is Direction.RECEIVE:
            self._digest_early(chunk)

    def _digest_early(self, chunk: Chunk) -> None:
        if self._digest is not None and self._digests_apart:
            self._digest.read(chunk)


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
