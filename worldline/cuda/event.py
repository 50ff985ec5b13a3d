"""Event: a point in a stream that hosts and other streams can wait for."""

from __future__ import annotations

import weakref

from worldline.cuda.runtime import call, current_device, is_ready, runtime
from worldline.cuda.waiting import wait_until


class Event:
    """A point in a stream, once it is recorded there (`Stream.record`); reusable.

    Raises:
        Unavailable: no such device.
    """

    def __init__(self, device_index: int, *, timed: bool = False) -> None:
        module = runtime()
        flags = module.cudaEventDefault if timed else module.cudaEventDisableTiming
        with current_device(device_index):
            self.handle = int(call("cudaEventCreateWithFlags", flags))
        self._close = weakref.finalize(self, call, "cudaEventDestroy", self.handle)
        self._close.atexit = False

    @property
    def is_done(self) -> bool:
        """Whether everything before the point is done; True before it is first recorded."""
        return is_ready("cudaEventQuery", self.handle)

    def wait(self, timeout_s: float) -> None:
        """Block this thread, not the interpreter, until the point is reached.

        Raises:
            DeadlineExceeded: it was not reached in time.
            Unavailable: the work before it failed.
        """
        wait_until(lambda: self.is_done, timeout_s, "an event")

    def doze(self, timeout_s: float) -> None:
        """As `wait`, but a fraction of a millisecond late: for when other threads have work."""
        wait_until(lambda: self.is_done, timeout_s, "an event", eager_s=0.0)

    def since_ms(self, earlier: Event) -> float:
        """Milliseconds on the device between two timed events that are both done."""
        return float(call("cudaEventElapsedTime", earlier.handle, self.handle))

    def close(self) -> None:
        """Give it back; what already waits for it goes on waiting."""
        self._close()
