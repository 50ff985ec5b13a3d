"""Plane: what runs a UCX worker. Either a thread of its own or the event loop (see both).

Everything that touches the worker happens there: `turn` for as long as something moves, and the
actions that others submit. While nothing does, the worker is armed and sleeps on its descriptor, so
that an idle mover uses no CPU; UCX's keepalive wakes it through the same descriptor.

Should anything raise, the work is told and fails whatever is outstanding; actions are still run,
which the failed work refuses.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

#: Polling goes on this long without progress before it sleeps: longer than the gap between two
#: chunks, far shorter than anything a person or an idle machine would notice.
_SPIN_S = 0.001
#: The same where cores are as few as the ends of a transfer: somebody else has use for this one,
#: perhaps the peer. Yielding instead gives it away for milliseconds, if anybody else is busy.
_SPIN_FEW_CORES_S = 0.00005
_FEW_CORES = 2
#: Longest sleep: a lost wake-up must not become a hang.
SLEEP_MS = 200

Action = Callable[[], None]


class Work(Protocol):
    """What a plane serves; called where it runs only."""

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


class Plane(Protocol):
    """Runs one `Work`."""

    def start(self) -> None:
        """Run; the worker must exist."""

    def submit(self, action: Action) -> None:
        """Run `action` where the work runs, soon and in order. From any thread; must not raise."""

    async def stop(self, timeout_s: float) -> bool:
        """Run what was submitted, then end; False when it did not end in time."""


def spin_s() -> float:
    """How long this process polls without progress before it sleeps."""
    return _SPIN_FEW_CORES_S if len(os.sched_getaffinity(0)) <= _FEW_CORES else _SPIN_S
