"""Waiting: until a device has finished, with a deadline and without holding the interpreter."""

from __future__ import annotations

import time
from collections.abc import Callable

from worldline.errors import DeadlineExceeded

#: Within this time it is asked again at once: what a digest takes, and less than a sleep's slack.
_EAGER_S = 0.002
_PAUSE_S = 0.0002


def wait_until(
    is_done: Callable[[], bool], timeout_s: float, what: str, *, eager_s: float = _EAGER_S
) -> None:
    """Ask until it is done; other threads run in between. `eager_s`: so long without a pause.

    CUDA's own waits know no deadline, and one that hangs could not be left.

    Raises:
        DeadlineExceeded: it was not done in time.
    """
    start_s = time.monotonic()
    while not is_done():
        elapsed_s = time.monotonic() - start_s
        if elapsed_s > timeout_s:
            raise DeadlineExceeded(f"{what} did not finish within {timeout_s} s")
        time.sleep(0 if elapsed_s < eager_s else _PAUSE_S)
