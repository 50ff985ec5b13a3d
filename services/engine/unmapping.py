"""Unmapping: a slot leaves this process by a thread of its own, and the event loop goes on.

To unmap 1.67 GB takes a core 30 to 150 ms, in which every session of the engine would stand still
and no lease be renewed. The order is as ever: a slot is unmapped when the thread says so, and only
then may anybody be told that it is free.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from threading import Thread
from typing import Protocol

import structlog

from services.engine.memory import Memory
from services.engine.slotmap import SlotMap
from worldline.errors import DeadlineExceeded

_log = structlog.get_logger(__name__)

#: A slot that takes longer than this to unmap is stuck in the driver.
UNMAP_TIMEOUT_S = 30.0


class Mapped(Protocol):
    """What has a slot mapped: a `SlotMap`, or a `Memory` that has let go of its views."""

    def close(self) -> None:
        """Unmap it; see `SlotMap.close`."""


class Unmapping:
    """One slot on its way out, once its views are dropped. Begun on the event loop.

    The thread is a daemon: where a driver never lets go of a slot, the process ends all the same.
    """

    def __init__(self, held: Mapped) -> None:
        self._loop = asyncio.get_running_loop()
        #: Done once the slot is unmapped; or fails as `SlotMap.close` does, which is logged.
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.ended.add_done_callback(_log_failure)
        Thread(target=self._run, args=(held,), name="unmapping", daemon=True).start()

    async def wait(self, timeout_s: float = UNMAP_TIMEOUT_S) -> None:
        """Until the slot is unmapped, also where the caller is cancelled: it is given away next.

        Raises:
            DeadlineExceeded: it was not in time.
            InvariantBroken: a view of it is still alive; the slot stays mapped.
        """
        waiting = asyncio.ensure_future(asyncio.wait({self.ended}, timeout=timeout_s))
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            await waiting
            raise
        if not self.ended.done():
            raise DeadlineExceeded(f"a slot was not unmapped within {timeout_s:g} s")
        self.ended.result()

    def _run(self, held: Mapped) -> None:
        try:
            held.close()
        except BaseException as error:  # whoever waits is to see it, whatever it is
            self._tell(self.ended.set_exception, error)
        else:
            self._tell(self.ended.set_result, None)

    def _tell(self, how: Callable[..., None], what: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(how, what)


def begin_unmapping(held: Memory | SlotMap) -> Unmapping:
    """Drop its views, here and now, and have it unmapped."""
    try:
        if isinstance(held, Memory):
            held.let_go()
    finally:
        unmapping = Unmapping(held)
    return unmapping


def _log_failure(ended: asyncio.Future[None]) -> None:
    if not ended.cancelled() and (error := ended.exception()) is not None:
        _log.error("slot.not_unmapped", error=str(error))
