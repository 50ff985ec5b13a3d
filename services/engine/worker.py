"""Worker: the one thread that runs quanta, so that the event loop never waits for torch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from services.engine.device import CPU_DEVICE, EngineDevice
from worldline.telemetry import carried

T = TypeVar("T")


class Worker:
    """Runs functions one at a time, in order, on one device, with a number of torch threads."""

    def __init__(self, threads: int, device: EngineDevice = CPU_DEVICE) -> None:
        def begin() -> None:
            # OpenMP keeps the thread count, and CUDA the device, per calling thread.
            torch.set_num_threads(threads)
            device.enter()

        begin()
        self._device = device
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="quanta", initializer=begin)

    @property
    def device(self) -> EngineDevice:
        """Where its functions compute."""
        return self._device

    async def run(self, function: Callable[[], T]) -> T:
        """The function's result, once the device has done what it queued.

        A cancelled wait does not stop what already runs.

        Raises:
            Unavailable: the device has failed; no later work will succeed.
        """

        def work() -> T:
            result = function()
            self._device.settle()
            return result

        return await asyncio.get_running_loop().run_in_executor(self._executor, carried(work))

    def close(self) -> None:
        """Finish what runs, drop what waits, end the thread."""
        self._executor.shutdown(wait=True, cancel_futures=True)
