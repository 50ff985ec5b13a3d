"""Crossing: one pass of a state between its slot and its parked copy, chunk by chunk, in threads.

Threads take chunks in order and each of them copies and digests its own, so that one chunk is
digested while others are copied. What kind of memory lies on either side is the crossing's own.
"""

from __future__ import annotations

import asyncio
import mmap
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from services.mover.chunking import Chunk, ChunkPlan
from worldline.errors import TransferFailed
from worldline.state.digest import GRANULE_BYTES
from worldline.telemetry import carried

T = TypeVar("T")

#: Copies and digests one chunk; called in a thread, several at once.
Carry = Callable[[Chunk], None]


class Crossing:
    """One pass over an extent. Its calls block: they are for threads."""

    #: What a thread carries at a time, in whole granules.
    chunk_bytes: int = GRANULE_BYTES
    #: Whether threads carry anything; False where a device does it all by itself.
    carries: bool = True

    def chunks(self, extent_bytes: int) -> Sequence[Chunk]:
        """What threads carry, one at a time."""
        return tuple(ChunkPlan(extent_bytes, self.chunk_bytes, GRANULE_BYTES))

    def begin(self) -> None:
        """Called once before the first chunk is carried; here a device is given its work."""

    def lane(self) -> AbstractContextManager[Carry]:
        """One thread's means of carrying chunks, given back at its end; where it `carries`."""
        raise NotImplementedError

    def await_chunk(self, chunk: Chunk) -> None:
        """Called before a chunk is carried, in order and by one thread at a time.

        Here one waits for what a device does: the others wait for their turn.
        """

    def beside(self) -> None:
        """Called once while others carry: what the end would otherwise have to wait for."""

    def end(self) -> None:
        """Called once after the last chunk; when it returns, every byte is where it belongs."""

    def settle(self) -> None:
        """Called last, whatever happened; when it returns, nothing touches the memory any more."""

    def close(self) -> None:
        """Give back what it took of a device; when nobody waits for it any more."""


async def cross(
    crossing: Crossing, extent_bytes: int, pool: Executor, threads: int, then: Callable[[], T]
) -> T:
    """Run a crossing to its end, and `then` in the same thread; what that gives.

    Cancelled or failed, nothing touches the memory when it returns. A world stands still meanwhile:
    one thread does all of it but the carrying, because each hand-over between threads takes as
    long as some megabytes.

    Raises:
        WorldlineError: what a thread met first; the others have stopped. Or what `then` raises.
    """
    turns = _Turns(crossing, crossing.chunks(extent_bytes) if crossing.carries else ())
    crossed = carried(lambda: _cross(crossing, turns, pool, threads, then))
    work = asyncio.get_running_loop().run_in_executor(pool, crossed)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        # A thread cannot be cancelled: it stops at its next chunk, and is waited for.
        turns.stop()
        await settled([work])
        raise


def _cross(
    crossing: Crossing, turns: _Turns, pool: Executor, threads: int, then: Callable[[], T]
) -> T:
    try:
        turns.check()  # it may have waited for this thread for long
        crossing.begin()
        if crossing.carries:
            _carry_all(crossing, turns, pool, threads)
        turns.check()
        crossing.end()
    finally:
        crossing.settle()
    return then()


def _carry_all(crossing: Crossing, turns: _Turns, pool: Executor, threads: int) -> None:
    """By this thread and as many others as the pool has free."""
    others: list[Future[None]] = []
    try:
        for _ in range(min(threads, turns.chunk_count) - 1):
            others.append(pool.submit(_work, crossing, turns))
        crossing.beside()
        _work(crossing, turns)
    except BaseException:
        turns.stop()
        raise
    finally:
        # Nothing is left for one that has not begun, and nobody may wait for it: every thread of
        # the pool may be in another crossing, and wait here as well.
        begun = [other for other in others if not other.cancel()]
        wait(begun)
    for other in begun:
        other.result()


class _Turns:
    """Hands out chunks in order, one thread at a time, each when it can be carried."""

    def __init__(self, crossing: Crossing, chunks: Sequence[Chunk]) -> None:
        self._crossing = crossing
        self.chunk_count = len(chunks)
        self._left = iter(chunks)
        self._turn = threading.Lock()
        self._stopped = False

    def take(self) -> Chunk | None:
        """The next one; None behind the last, or once stopped."""
        with self._turn:
            chunk = None if self._stopped else next(self._left, None)
            if chunk is not None:
                self._crossing.await_chunk(chunk)
            return chunk

    def stop(self) -> None:
        """Hand out no more."""
        self._stopped = True

    def check(self) -> None:
        """Go on only where nobody has stopped it.

        Raises:
            TransferFailed: somebody has (CANCELLED).
        """
        if self._stopped:
            raise TransferFailed("the crossing was stopped", reason="CANCELLED")


def _work(crossing: Crossing, turns: _Turns) -> None:
    try:
        with crossing.lane() as carry:
            for chunk in iter(turns.take, None):
                carry(chunk)
    except BaseException:
        turns.stop()
        raise


async def in_thread(
    pool: Executor, work: Callable[[], T], undo: Callable[[T], None] | None = None
) -> T:
    """Run `work` in a thread and wait for its end, also when the caller is cancelled.

    `undo` then gets what it took, which nobody else will ever see.
    """
    future = asyncio.get_running_loop().run_in_executor(pool, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        try:
            await settled([future])
        finally:  # whoever is cancelled once more while it waits here still has to undo
            if undo is not None and future.exception() is None:
                undo(future.result())
        raise


async def settled(futures: list[asyncio.Future[Any]]) -> None:
    """Until all have ended, however often the wait is cancelled; the cancellation comes after.

    Whoever waits for no more than the end does not ask why others failed.
    """
    cancelled: asyncio.CancelledError | None = None
    while not all(future.done() for future in futures):
        try:
            await asyncio.wait(futures)
        except asyncio.CancelledError as error:
            cancelled = error
    for future in futures:
        if not future.cancelled():
            future.exception()  # or it would be logged as one that nobody has looked at
    if cancelled is not None:
        raise cancelled


@contextmanager
def scratch(size_bytes: int) -> Iterator[memoryview]:
    """A thread's own buffer of zeros, aligned to pages.

    Raises:
        TransferFailed: the machine has no memory for it.
    """
    try:
        memory = mmap.mmap(-1, size_bytes)
    except (OSError, ValueError) as error:
        raise TransferFailed(
            f"no memory for a buffer of {size_bytes} bytes: {error}", reason="MEMORY_EXHAUSTED"
        ) from error
    view = memoryview(memory)
    try:
        yield view
    finally:
        view.release()
        memory.close()
