"""Data-plane thread: runs one UCX worker; everything that touches UCX happens on it.

Why a thread of its own, and not the event loop: one `progress` call copies up to a few hundred
kilobytes and, while a peer streams, the next one has as much to do. On the event loop that is
either a stall for gRPC or, in short slices, a turn of the loop per slice. A thread spends the
time inside UCX with the interpreter's lock released, so control stays responsive and bytes wait
for nobody. ucxx's own progress thread was measured 1.7 to 12 times slower than polling.

Polls while requests are outstanding and bytes move; after a moment without progress it arms the
worker and sleeps in `poll` until UCX or a command wakes it. An idle mover uses no CPU: UCX's
keepalive wakes it through the same descriptor.

Should anything raise here, the work is told and fails whatever is outstanding; the thread itself
lives on until `stop`, for commands, which the failed work refuses.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import structlog

_log = structlog.get_logger(__name__)

#: Polling goes on this long without progress before the thread sleeps: longer than the gap
#: between two chunks, far shorter than anything a person or an idle machine would notice.
_SPIN_S = 0.001
#: The same where cores are as few as the ends of a transfer: somebody else has use for this one,
#: perhaps the peer. Yielding instead gives it away for milliseconds, if anybody else is busy.
_SPIN_FEW_CORES_S = 0.00005
_FEW_CORES = 2
#: Longest sleep: a lost wake-up must not become a hang.
SLEEP_MS = 200


class Work(Protocol):
    """What the thread serves; called on it only."""

    def descriptor(self) -> int:
        """Readable when there is something to do, once `arm` was true."""

    def arm(self) -> bool:
        """Whether it is safe to sleep until the descriptor is readable."""

    def turn(self) -> bool:
        """Do a bounded piece of what there is to do; whether anything moved."""

    def is_busy(self) -> bool:
        """Whether any request is outstanding."""

    def fail(self, cause: Exception) -> None:
        """`turn` or `arm` has raised, and will not be called again."""


class DataPlane:
    """Owns the thread. `submit` is for any thread; actions run in order."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping = False
        self._sleeping = False
        few = len(os.sched_getaffinity(0)) <= _FEW_CORES
        self._spin_s = _SPIN_FEW_CORES_S if few else _SPIN_S
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
            moved = self._run_commands()
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
            self._run_commands()
            self._sleep(poller, armed=True)

    @property
    def _done(self) -> bool:
        return self._stopping and not self._commands

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

    def _sleep(self, poller: select.poll, *, armed: bool = False) -> None:
        # Announced before the last look at the queue, so that a command that comes in between
        # either is seen here or writes the descriptor.
        self._sleeping = True
        try:
            if self._commands or self._stopping or not (armed or self._work.arm()):
                return
            for descriptor, _ in poller.poll(SLEEP_MS):
                if descriptor == self._wake:
                    os.eventfd_read(self._wake)
        finally:
            self._sleeping = False
