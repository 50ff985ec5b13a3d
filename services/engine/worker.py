"""Worker: the one thread that runs quanta, so that the event loop never waits for torch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


class Worker:
    """Runs functions one at a time, in order, with a fixed number of torch threads."""

    def __init__(self, threads: int) -> None:
        # OpenMP keeps the thread count per calling thread: set it in the worker too.
        torch.set_num_threads(threads)
        self._executor = ThreadPoolExecutor(
            1, thread_name_prefix="quanta", initializer=torch.set_num_threads, initargs=(threads,)
        )

    async def run(self, function: Callable[[], T]) -> T:
        """The function's result. A cancelled wait does not stop what already runs."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    def close(self) -> None:
        """Finish what runs, drop what waits, end the thread."""
        self._executor.shutdown(wait=True, cancel_futures=True)
