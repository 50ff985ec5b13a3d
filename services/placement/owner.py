"""Owner of tasks: no task runs that nobody awaits, and none outlives its owner."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

from worldline.errors import InvariantBroken, WorldlineError

_log = structlog.get_logger(__name__)

T = TypeVar("T")


class TaskOwner:
    """Holds tasks until they end; a bug that ends one is logged even where nobody waits."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run `work` as a task of this owner."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        # A typed error is an answer, for whoever waits.
        if isinstance(error, InvariantBroken) or not isinstance(error, WorldlineError):
            _log.error("task.failed", task=task.get_name(), exc_info=error)

    async def wait(self, timeout_s: float) -> bool:
        """Let every task end by itself; False when some did not in time."""
        if not self._tasks:
            return True
        _, late = await asyncio.wait(set(self._tasks), timeout=timeout_s)
        return not late

    async def close(self) -> None:
        """Cancel what still runs and see it end."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __len__(self) -> int:
        return len(self._tasks)
