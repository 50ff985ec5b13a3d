"""Late: copies that nobody waits for any more, and that a device may still make.

A copy that was queued cannot be recalled. Whoever gives up waiting for one leaves it here, and
whoever hands the device's memory to somebody else asks here before.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable

from worldline.cuda.event import Event
from worldline.cuda.stream import Stream
from worldline.cuda.waiting import wait_until

_lock = threading.Lock()
#: By device: where the copies end, and what to do then.
_ends: defaultdict[int, list[tuple[Event, Callable[[], None]]]] = defaultdict(list)


def leave(stream: Stream, then: Callable[[], None] = lambda: None) -> None:
    """Nobody waits for what this stream holds now; it may be closed.

    `then` gives back what the copies still need; called once somebody has found them made.

    Raises:
        Unavailable: the device has failed, and with it whatever was queued.
    """
    end = stream.record()
    with _lock:
        _ends[stream.device_index].append((end, then))


def is_quiet(device_index: int) -> bool:
    """Whether all that was left is done.

    Raises:
        Unavailable: the device has failed.
    """
    with _lock:
        waiting = _ends[device_index]
        while waiting and waiting[-1][0].is_done:
            end, then = waiting.pop()
            end.close()
            then()
        return not waiting


def wait(device_index: int, timeout_s: float) -> None:
    """Block this thread until all that was left is done.

    Raises:
        DeadlineExceeded: it was not in time.
        Unavailable: the device has failed.
    """
    wait_until(lambda: is_quiet(device_index), timeout_s, "a copy that was given up")
