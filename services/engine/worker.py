"""Worker: the one thread that runs quanta, so that the event loop never waits for torch."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

import torch

from services.engine.device import CPU_DEVICE, EngineDevice
from worldline.telemetry import carried

T = TypeVar("T")


class Worker:
    """Runs functions one at a time, in order, on one device, with a number of torch threads.

    A thread of its own and no executor: there, a result goes through two futures and three turns of
    the event loop, and between two quanta that is time in which the device does nothing.
    """

    def __init__(self, threads: int, device: EngineDevice = CPU_DEVICE) -> None:
        self._threads = threads
        self._device = device
        self._enter()
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._runs: _Job[Any] | None = None
        self._closed = False
        # A daemon: who forgets to close it is not kept from ending.
        self._thread = Thread(target=self._work, name="quanta", daemon=True)
        self._thread.start()

    @property
    def device(self) -> EngineDevice:
        """Where its functions compute."""
        return self._device

    @property
    def should_yield(self) -> bool:
        """What runs should end where it can: another function waits for its turn, nobody waits for
        the result any more, or the worker is being closed. For the function itself to ask.
        """
        runs = self._runs
        return not self._jobs.empty() or runs is None or runs.future.cancelled()

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Begin it, or have it begin when what was submitted before has ended; see `run`."""
        if self._closed:
            raise RuntimeError("the worker is closed")

        def work() -> T:
            result = function()
            self._device.settle()
            return result

        job = _Job(carried(work), asyncio.get_running_loop().create_future())
        self._jobs.put(job)
        return job.future

    async def run(self, function: Callable[[], T]) -> T:
        """The function's result, once the device has done what it queued.

        A cancelled wait does not stop what already runs.

        Raises:
            Unavailable: the device has failed; no later work will succeed.
        """
        return await self.submit(function)

    def close(self) -> None:
        """Finish what runs, drop what waits, end the thread."""
        self._closed = True
        with contextlib.suppress(Empty):
            while (job := self._jobs.get_nowait()) is not None:
                job.drop()
        self._jobs.put(None)
        self._thread.join()

    def _enter(self) -> None:
        # OpenMP keeps the thread count, and CUDA the device, per calling thread.
        torch.set_num_threads(self._threads)
        self._device.enter()

    def _work(self) -> None:
        self._enter()
        while (job := self._jobs.get()) is not None:
            self._runs = job
            job.do()
            # What it ran on, views of a slot, must not stay until the next one comes.
            self._runs = None
            del job


class _Job(Generic[T]):
    """One function, and the future of its result on the event loop that waits for it."""

    def __init__(self, work: Callable[[], T], future: asyncio.Future[T]) -> None:
        self._work = work
        self.future = future

    def do(self) -> None:
        """In the worker's thread. What was cancelled before it began is not begun."""
        if self.future.cancelled():
            return
        try:
            result = self._work()
        except BaseException as error:  # the waiter's to see, whatever it is
            self._tell(self._fail, error)
        else:
            self._tell(self._succeed, result)

    def drop(self) -> None:
        """On the event loop's thread: it will not be begun."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self.future.cancel()

    def _tell(self, how: Callable[[Any], None], what: object) -> None:
        with contextlib.suppress(RuntimeError):
            self.future.get_loop().call_soon_threadsafe(how, what)

    def _succeed(self, result: T) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, StopIteration):
            # A future does not take one: it would end the coroutine that awaits it in silence.
            error = RuntimeError(f"the function raised StopIteration({error.value!r})")
        if not self.future.done():
            self.future.set_exception(error)
