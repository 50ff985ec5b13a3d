"""Thread plane: runs one UCX worker on a thread of its own, for bytes that cores copy.

Why a thread, and not the event loop: one `progress` call copies up to a few hundred kilobytes and,
while a peer streams, the next one has as much to do. On the event loop that is either a stall for
gRPC or, in short slices, a turn of the loop per slice. A thread spends the time inside UCX with the
interpreter's lock released, so control stays responsive and bytes wait for nobody. ucxx's own
progress thread was measured 1.7 to 12 times slower than polling.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from collections import deque

import structlog

from services.mover.transport.plane import SLEEP_MS, Action, Work, spin_s

_log = structlog.get_logger(__name__)


class ThreadPlane:
    """Owns the thread. See `Plane`."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._actions: deque[Action] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping = False
        self._sleeping = False
        self._spin_s = spin_s()
        self._thread = threading.Thread(target=self._run, name="data-plane", daemon=True)

    def start(self) -> None:
        """See `Plane.start`."""
        self._thread.start()

    def submit(self, action: Action) -> None:
        """See `Plane.submit`."""
        self._actions.append(action)
        if self._sleeping:
            os.eventfd_write(self._wake, 1)

    async def stop(self, timeout_s: float) -> bool:
        """See `Plane.stop`."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        await asyncio.to_thread(self._thread.join, timeout_s)
        if self._thread.is_alive():
            return False
        os.close(self._wake)
        return True

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as cause:
            _log.exception("dataplane.failed")
            self._work.fail(cause)
            self._refuse()

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(self._work.descriptor(), select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        moved_at = time.monotonic()
        while not self._done:
            moved = self._run_actions()
            moved = self._work.turn() or moved
            if moved:
                moved_at = time.monotonic()
            elif not self._work.is_busy() or time.monotonic() - moved_at >= self._spin_s:
                self._sleep(poller)
                moved_at = time.monotonic()

    def _refuse(self) -> None:
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        while not self._done:
            self._run_actions()
            self._sleep(poller, armed=True)

    @property
    def _done(self) -> bool:
        return self._stopping and not self._actions

    def _run_actions(self) -> bool:
        ran = False
        while self._actions:
            action = self._actions.popleft()
            try:
                action()
            except Exception:
                _log.exception("dataplane.action_failed")
            ran = True
        return ran

    def _sleep(self, poller: select.poll, *, armed: bool = False) -> None:
        # Announced before the last look at the queue, so that an action that comes in between
        # either is seen here or writes the descriptor.
        self._sleeping = True
        try:
            if self._actions or self._stopping or not (armed or self._work.arm()):
                return
            for descriptor, _ in poller.poll(SLEEP_MS):
                if descriptor == self._wake:
                    os.eventfd_read(self._wake)
        finally:
            self._sleeping = False
