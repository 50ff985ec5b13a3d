"""Data-plane thread: runs one UCX worker; everything that touches UCX happens on it.

Why a thread of its own, and not the event loop: one `progress` call copies up to a few hundred
kilobytes and, while a peer streams, the next one has as much to do. On the event loop that is
either a stall for gRPC or, in short slices, a turn of the loop per slice. A thread spends the
time inside UCX with the interpreter's lock released, so control stays responsive and bytes wait
for nobody. ucxx's own progress thread was measured 1.7 to 12 times slower than polling.

Polls while requests are outstanding and bytes move; after a moment without progress it arms the
worker and sleeps in `poll` until UCX or a command wakes it. An idle mover uses no CPU: UCX's
keepalive wakes it through the same descriptor.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import structlog

_log = structlog.get_logger(__name__)

#: Polling goes on this long without progress before the thread sleeps: longer than the gap
#: between two chunks, far shorter than anything a person or an idle machine would notice.
SPIN_S = 0.001
#: Most progress calls between two looks at commands and completions.
PROGRESS_BATCH = 16
#: Longest sleep: a lost wake-up must not become a hang.
SLEEP_MS = 200


class Work(Protocol):
    """What the thread serves; called on it only."""

    worker: Any

    def sweep(self) -> bool:
        """Report finished requests; whether any is still outstanding."""


class DataPlane:
    """Owns the thread. `submit` is for any thread; actions run in order."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping = False
        self._sleeping = False
        self._thread = threading.Thread(target=self._run, name="data-plane", daemon=True)

    def start(self) -> None:
        """Run; the worker must exist."""
        self._thread.start()

    def submit(self, action: Callable[[], None]) -> None:
        """Run `action` on the thread, soon. It must not raise."""
        self._commands.append(action)
        if self._sleeping:
            os.eventfd_write(self._wake, 1)

    def stop(self, timeout_s: float) -> bool:
        """Run what was submitted, end the thread; False when it did not end in time."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        os.close(self._wake)
        return True

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._work.worker.epoll_file_descriptor, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        moved_at = time.monotonic()
        while not (self._stopping and not self._commands):
            moved = self._run_commands()
            moved = self._progress() or moved
            outstanding = self._work.sweep()
            if moved:
                moved_at = time.monotonic()
            elif outstanding and time.monotonic() - moved_at < SPIN_S:
                os.sched_yield()  # the peer may need this core to make the progress awaited here
            else:
                self._sleep(poller)
                moved_at = time.monotonic()

    def _run_commands(self) -> bool:
        ran = False
        while self._commands:
            action = self._commands.popleft()
            try:
                action()
            except Exception:
                _log.exception("dataplane.command_failed")
            ran = True
        return ran

    def _progress(self) -> bool:
        worker = self._work.worker
        for count in range(PROGRESS_BATCH):
            if not worker.progress_once():
                # Only this one also carries out the cancellations that ucxx has scheduled, for
                # the requests of an endpoint whose peer has died.
                worker.progress()
                return count > 0
        return True

    def _sleep(self, poller: select.poll) -> None:
        # Announced before the last look at the queue, so that a command that comes in between
        # either is seen here or writes the descriptor.
        self._sleeping = True
        try:
            if self._commands or self._stopping or not self._work.worker.arm():
                return
            for descriptor, _ in poller.poll(SLEEP_MS):
                if descriptor == self._wake:
                    os.eventfd_read(self._wake)
        finally:
            self._sleeping = False
