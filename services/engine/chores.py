"""Chores: runs an engine's own work part by part, as the loop that gives quanta has it."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from services.engine.chore import Turns
from services.engine.device import EngineDevice
from services.engine.parts import Parts
from services.engine.schedule import Claim
from services.engine.signal import Signal, wait_for_change
from services.engine.worker import Worker
from worldline.errors import Unavailable

T = TypeVar("T")

#: Looked at again this often even when nothing said so.
_LOOK_S = 5.0


@dataclass(frozen=True)
class _Part:
    """What came of one part."""

    elapsed_s: float
    is_last: bool = False
    result: Any = None
    error: BaseException | None = None


class _Chore:
    """One on its way: where it is, and what came of it."""

    def __init__(self, turns: Turns, parts: Parts[Any]) -> None:
        self.turns = turns
        self.parts = parts
        #: The part that runs now.
        self.running: asyncio.Future[_Part] | None = None
        self.last: _Part | None = None


class Chores:
    """The chores of one engine. On the event loop only; their parts run in the worker's thread.

    While the loop of `Generation` attends, a part runs when the schedule says so. Where none does
    nobody plays, and parts follow each other.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._chores: dict[str, _Chore] = {}
        self._count = 0
        self._attending: Signal | None = None
        self._changed = Signal()

    @property
    def worker(self) -> Worker:
        """What runs their parts."""
        return self._worker

    @property
    def device(self) -> EngineDevice:
        """Where they compute."""
        return self._worker.device

    async def run(self, parts: Parts[T], *, stands: bool = False) -> T:
        """What the chore returns, once all its parts have run; `stands`: a world stands still for
        it. When this returns or raises nothing of it runs any more, and its `finally` clauses have.

        Raises:
            Unavailable: the engine stops, or its device has failed. Whatever a part raises.
        """
        self._count += 1
        # No session has such a name: theirs are without spaces.
        turns = Turns(f"chore {self._count}", time.monotonic(), stands)
        chore = self._chores[turns.chore_id] = _Chore(turns, parts)
        try:
            while chore.last is None:
                token = self._changed.token()
                if self._attending is None:
                    await self._advance(chore)
                else:
                    self._attending.notify()
                    await wait_for_change(token, _LOOK_S)
        finally:
            del self._chores[turns.chore_id]
            await self._end(chore)
        if chore.last.error is not None:
            raise chore.last.error
        result: T = chore.last.result
        return result

    def claims(self, now: float) -> list[Claim]:
        """What chores claim of the next quantum. The worker may ask too, between two quanta."""
        return [each.turns.claim(now) for each in list(self._chores.values()) if _waits(each)]

    def hard_at(self) -> float:
        """When the first that waits now will wait no longer; infinite where none does."""
        waiting = [each.turns.hard_at for each in self._chores.values() if _waits(each)]
        return min(waiting, default=float("inf"))

    async def advance(self, chore_id: str) -> None:
        """Run the next part of the chore whose claim was chosen."""
        await self._advance(self._chores[chore_id])

    @contextmanager
    def attended(self, wake: Signal) -> Iterator[None]:
        """Inside, somebody asks for `claims` and calls `advance`; `wake` says: there is more."""
        self._attending = wake
        try:
            yield
        finally:
            self._attending = None
            self._changed.notify()

    async def _advance(self, chore: _Chore) -> None:
        """A wait that is cancelled loses nothing of what the part came to."""
        if chore.running is None:
            chore.running = self._worker.submit(lambda: _next(chore.parts, self._worker.device))
            chore.running.add_done_callback(lambda passed: self._passed(chore, passed))
        await asyncio.wait({chore.running})

    def _passed(self, chore: _Chore, passed: asyncio.Future[_Part]) -> None:
        chore.running = None
        part = _outcome(passed)
        chore.turns.took(part.elapsed_s)
        if part.is_last:
            chore.last = part
            self._changed.notify()

    async def _end(self, chore: _Chore) -> None:
        """Let a part end that still runs, and give up what is left."""
        if chore.running is not None:
            await asyncio.wait({chore.running})
        if chore.last is None:
            with suppress(RuntimeError):  # the worker is closed: nothing of it will ever run
                await asyncio.wait({self._worker.submit(chore.parts.close)})


def _waits(chore: _Chore) -> bool:
    return chore.running is None and chore.last is None


def _next(parts: Parts[Any], device: EngineDevice) -> _Part:
    """One part, in the worker's thread, until the device is done with it."""
    started = time.perf_counter()
    try:
        next(parts)
        device.settle()
    except StopIteration as over:
        return _Part(time.perf_counter() - started, is_last=True, result=over.value)
    except BaseException as error:
        _let_go(error)
        return _Part(time.perf_counter() - started, is_last=True, error=error)
    return _Part(time.perf_counter() - started)


def _let_go(error: BaseException) -> None:
    """Its frames may hold views of a slot that is to be unmapped."""
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)
        found = found.__cause__ or found.__context__


def _outcome(passed: asyncio.Future[_Part]) -> _Part:
    """What came of a part; also where the worker was closed before it began, or cannot go on."""
    if passed.cancelled():
        stopping = Unavailable("the engine stops", reason="ENGINE_STOPS")
        return _Part(0.0, is_last=True, error=stopping)
    error = passed.exception()
    return passed.result() if error is None else _Part(0.0, is_last=True, error=error)
