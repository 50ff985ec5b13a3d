"""Loop plane: runs one UCX worker on the event loop, for bytes that devices copy by themselves.

Progress is bookkeeping then, a few microseconds a call, and what takes time is handing over: a
polling thread and the event loop take the interpreter from each other at every completion, digest
and message, about 0.1 ms each time, which was most of a small state's move between two GPUs. Here
nothing is handed over.

Where a lane copies after all (staged between hosts over TCP) it does so on the loop, for as long as
a turn's few `progress` calls take; gRPC has its turn between two of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque

import structlog

from services.mover.transport.plane import SLEEP_MS, Action, Work, spin_s

_log = structlog.get_logger(__name__)


class LoopPlane:
    """Made and stopped on the loop that it runs on. See `Plane`."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._actions: deque[Action] = deque()
        self._next: asyncio.Handle | None = None
        self._moved_at = 0.0
        self._spin_s = spin_s()
        self._in_turn = False
        self._failed = False
        self._descriptor: int | None = None

    def start(self) -> None:
        """See `Plane.start`."""
        self._descriptor = self._work.descriptor()
        self._loop.add_reader(self._descriptor, self._go_on)
        self._go_on()

    def submit(self, action: Action) -> None:
        """See `Plane.submit`. On the loop, and with nothing before it, it is run at once."""
        self._actions.append(action)
        if threading.get_ident() == self._thread_id:
            self._run_actions()
            return
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._run_actions)

    async def stop(self, timeout_s: float) -> bool:
        """See `Plane.stop`. Nothing here can be late: what was submitted has been run."""
        self._run_actions()
        self._leave()
        return True

    def _run_actions(self) -> None:
        if self._in_turn:
            return  # the turn runs them at its end
        self._in_turn = True
        try:
            while self._actions:
                try:
                    self._actions.popleft()()
                except Exception:
                    _log.exception("dataplane.action_failed")
        finally:
            self._in_turn = False
        self._moved_at = time.monotonic()
        self._go_on()

    def _go_on(self) -> None:
        """Take a turn as soon as the loop has served whoever else is ready."""
        if self._descriptor is None or self._failed:
            return
        if isinstance(self._next, asyncio.TimerHandle):
            self._next.cancel()
            self._next = None
        if self._next is None:
            self._next = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._next = None
        try:
            if self._advance():
                self._go_on()
            else:
                self._next = self._loop.call_later(SLEEP_MS / 1e3, self._go_on_late)
        except Exception as cause:
            _log.exception("dataplane.failed")
            self._failed = True
            self._leave()
            self._work.fail(cause)
            self._run_actions()  # what the broken turn itself has submitted

    def _go_on_late(self) -> None:
        self._next = None
        self._go_on()

    def _advance(self) -> bool:
        """One turn of the work; False where it may sleep now."""
        self._in_turn = True
        try:
            moved = self._work.turn()
        finally:
            self._in_turn = False
        if self._actions:
            self._run_actions()
            return True
        if moved:
            self._moved_at = time.monotonic()
            return True
        if self._work.is_busy() and time.monotonic() - self._moved_at < self._spin_s:
            return True
        return not self._work.arm()

    def _leave(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            self._descriptor = None
