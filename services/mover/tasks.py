"""Task helpers: a stream that a task feeds, and a set that owns tasks until they are done."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import structlog

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")


class TaskSet:
    """Owns background tasks: each is kept until done, all are awaited at the end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run `work`; what it raises is logged."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def finish(self, timeout_s: float) -> bool:
        """Wait for every task; those that outlast the time are cancelled. Whether all ended."""
        if not self._tasks:
            return True
        _, late = await asyncio.wait(set(self._tasks), timeout=timeout_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return not late

    def __len__(self) -> int:
        return len(self._tasks)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("task.failed", task=task.get_name(), exc_info=task.exception())


async def fed_by(work: Callable[[Callable[[_T], None]], Awaitable[None]]) -> AsyncIterator[_T]:
    """Yield what `work(emit)` emits, raise what it raises; a closed stream cancels the work.

    The work runs in one task of its own, so that its spans and timeouts do not straddle yields.
    """
    queue: asyncio.Queue[_T] = asyncio.Queue()
    task = asyncio.ensure_future(work(queue.put_nowait))
    getter: asyncio.Task[_T] | None = None
    try:
        while True:
            getter = asyncio.create_task(queue.get())
            await asyncio.wait({task, getter}, return_when=asyncio.FIRST_COMPLETED)
            if getter.done():
                yield getter.result()
                continue
            break
        getter.cancel()
        while not queue.empty():
            yield queue.get_nowait()
        await task
    finally:
        if getter is not None:
            getter.cancel()
        if not task.done():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
