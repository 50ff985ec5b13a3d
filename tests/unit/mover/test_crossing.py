"""Crossings: every chunk once, and nothing touches the memory any more when one returns."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from services.mover.chunking import Chunk
from services.mover.crossing import Carry, Crossing, cross, in_thread
from tests.unit.mover.cluster import until
from worldline.errors import TransferFailed
from worldline.state.digest import GRANULE_BYTES

MEBIBYTE = GRANULE_BYTES


class Recorder(Crossing):
    """Keeps the order of what was called, and how many threads are inside."""

    def __init__(self, fail_at: int = -1, pause_s: float = 0.0) -> None:
        self.awaited: list[int] = []
        self.carried: list[int] = []
        self.calls: list[str] = []
        self.inside = 0
        self.inside_at_settle = -1
        self._fail_at = fail_at
        self._pause_s = pause_s
        self._lock = threading.Lock()

    def begin(self) -> None:
        self.calls.append("begin")

    def beside(self) -> None:
        self.calls.append("beside")

    def await_chunk(self, chunk: Chunk) -> None:
        self.awaited.append(chunk.index)

    @contextmanager
    def lane(self) -> Iterator[Carry]:
        with self._lock:
            self.inside += 1
        try:
            yield self._carry
        finally:
            with self._lock:
                self.inside -= 1

    def _carry(self, chunk: Chunk) -> None:
        if chunk.index == self._fail_at:
            raise TransferFailed(f"chunk {chunk.index}")
        time.sleep(self._pause_s)
        with self._lock:
            self.carried.append(chunk.index)

    def end(self) -> None:
        self.calls.append("end")

    def settle(self) -> None:
        self.calls.append("settle")
        self.inside_at_settle = self.inside


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


@pytest.mark.parametrize("chunks", [0, 1, 3, 50])
async def test_every_chunk_is_carried_once(pool: ThreadPoolExecutor, chunks: int) -> None:
    crossing = Recorder()
    await cross(crossing, chunks * MEBIBYTE, pool, 4, lambda: None)
    assert sorted(crossing.carried) == list(range(chunks))
    assert crossing.awaited == list(range(chunks)), "one waits for what comes later"
    assert crossing.calls == ["begin", "beside", "end", "settle"]


async def test_what_follows_is_done_once_nothing_touches_the_memory(
    pool: ThreadPoolExecutor,
) -> None:
    crossing = Recorder()
    assert await cross(crossing, MEBIBYTE, pool, 4, lambda: crossing.calls[-1]) == "settle"

    def refuse() -> None:
        raise TransferFailed("not what it was")

    with pytest.raises(TransferFailed, match="not what it was"):
        await cross(Recorder(), MEBIBYTE, pool, 4, refuse)


async def test_more_crossings_than_threads_all_end(pool: ThreadPoolExecutor) -> None:
    """None waits for helpers that the others' threads would have to become."""
    crossings = [Recorder(pause_s=0.001) for _ in range(12)]
    async with asyncio.timeout(60):
        await asyncio.gather(
            *(cross(one, 20 * MEBIBYTE, pool, 4, lambda: None) for one in crossings)
        )
    for crossing in crossings:
        assert sorted(crossing.carried) == list(range(20))


async def test_the_first_failure_comes_out_and_the_others_stop(pool: ThreadPoolExecutor) -> None:
    crossing = Recorder(fail_at=5, pause_s=0.01)
    with pytest.raises(TransferFailed, match="chunk 5"):
        await cross(crossing, 10_000 * MEBIBYTE, pool, 4, lambda: None)
    assert crossing.calls == ["begin", "beside", "settle"], "what failed has not ended"
    assert crossing.inside_at_settle == 0
    assert len(crossing.carried) < 9_999, "nobody stopped"


async def test_a_cancelled_crossing_returns_when_no_thread_is_inside(
    pool: ThreadPoolExecutor,
) -> None:
    crossing = Recorder(pause_s=0.02)
    crossed = asyncio.ensure_future(cross(crossing, 10_000 * MEBIBYTE, pool, 4, lambda: None))
    await until(lambda: bool(crossing.carried) and "beside" in crossing.calls)
    crossed.cancel()
    crossed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await crossed
    assert crossing.calls == ["begin", "beside", "settle"]
    assert crossing.inside_at_settle == 0
    count = len(crossing.carried)
    await asyncio.sleep(0.1)
    assert len(crossing.carried) == count, "a thread still carries"


async def test_what_a_cancelled_caller_took_is_undone(pool: ThreadPoolExecutor) -> None:
    begun, undone = threading.Event(), []

    def take() -> str:
        begun.set()
        time.sleep(0.1)
        return "a buffer"

    taking = asyncio.ensure_future(in_thread(pool, take, undone.append))
    while not begun.is_set():  # noqa: ASYNC110 - a thread's event
        await asyncio.sleep(0.005)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert undone == ["a buffer"]


async def test_what_a_caller_who_was_cancelled_twice_took_is_undone(
    pool: ThreadPoolExecutor,
) -> None:
    """A client that goes away, and then the mover that stops."""
    begun, goes_on, undone = threading.Event(), threading.Event(), list[str]()

    def take() -> str:
        begun.set()
        goes_on.wait(60)
        return "a buffer"

    taking = asyncio.ensure_future(in_thread(pool, take, undone.append))
    while not begun.is_set():  # noqa: ASYNC110 - a thread's event
        await asyncio.sleep(0.005)
    for _ in range(2):
        taking.cancel()
        await asyncio.sleep(0.005)
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert undone == ["a buffer"]


async def test_a_crossing_that_was_cancelled_before_its_turn_does_not_begin() -> None:
    crossing, goes_on, followed = Recorder(), threading.Event(), list[str]()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(goes_on.wait, 240)
        crossed = asyncio.ensure_future(
            cross(crossing, MEBIBYTE, pool, 4, lambda: followed.append("then"))
        )
        await asyncio.sleep(0)
        crossed.cancel()
        await asyncio.sleep(0)
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await crossed
    assert crossing.calls == ["settle"]
    assert crossing.carried == followed == []


class Exhausted(ThreadPoolExecutor):
    """Has no more threads once the first helper is inside."""

    def __init__(self, crossing: Recorder) -> None:
        super().__init__(4)
        self._crossing = crossing
        self._submitted = 0

    def submit(self, *arguments: Any, **named: Any) -> Future[Any]:
        self._submitted += 1
        if self._submitted > 2:
            while not self._crossing.inside:
                time.sleep(0.001)
            raise RuntimeError("can't start new thread")
        return super().submit(*arguments, **named)


async def test_a_pool_without_threads_fails_a_crossing_once_its_helpers_have_left() -> None:
    crossing = Recorder(pause_s=0.05)
    with Exhausted(crossing) as pool, pytest.raises(RuntimeError, match="new thread"):
        await cross(crossing, 10_000 * MEBIBYTE, pool, 4, lambda: None)
    assert crossing.calls == ["begin", "settle"]
    assert crossing.inside_at_settle == 0
    assert len(crossing.carried) < 10_000


async def test_why_a_crossing_failed_that_was_cancelled_twice_is_no_news(
    pool: ThreadPoolExecutor,
) -> None:
    """Whoever gives up does not ask; nor is it logged as something that nobody has asked about."""
    news: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: news.append(context))
    goes_on = threading.Event()

    def fail() -> None:
        goes_on.wait(60)
        raise TransferFailed("the disk is gone")

    giving_up = [
        asyncio.ensure_future(cross(Recorder(pause_s=0.02), 10_000 * MEBIBYTE, pool, 2, fail)),
        asyncio.ensure_future(in_thread(pool, fail)),
    ]
    for _ in range(3):
        await asyncio.sleep(0.005)
        for one in giving_up:
            one.cancel()
    goes_on.set()
    await asyncio.wait(giving_up)
    assert all(one.cancelled() for one in giving_up)
    del giving_up, one
    gc.collect()
    assert news == []
