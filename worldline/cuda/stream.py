"""Stream: a queue of copies, fills and kernels on one device, which run while the host goes on."""

from __future__ import annotations

import weakref

from worldline.cuda.availability import require
from worldline.cuda.event import Event
from worldline.cuda.runtime import call, current_device, is_ready, runtime
from worldline.cuda.waiting import wait_until


class Stream:
    """A stream that does not wait for the default stream, nor the default stream for it.

    Addresses are of device memory of any device that is reachable, or of host memory. Copies from
    or to host memory run along with the host only where that is pinned (`pinned`).

    Raises:
        Unavailable: no such device.
    """

    def __init__(self, device_index: int) -> None:
        require()
        self.device_index = device_index
        with current_device(device_index):
            self.handle = int(call("cudaStreamCreateWithFlags", runtime().cudaStreamNonBlocking))
        self._close = weakref.finalize(self, call, "cudaStreamDestroy", self.handle)
        self._close.atexit = False

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol by which other libraries queue work here: version 0, and the handle."""
        return 0, self.handle

    def copy(self, target_address: int, source_address: int, size_bytes: int) -> None:
        """Queue a copy; the driver finds from the addresses where each side rests.

        Raises:
            Unavailable: an address is of no known memory, or the stream has failed before.
        """
        if size_bytes:
            kind = runtime().cudaMemcpyKind.cudaMemcpyDefault
            with current_device(self.device_index):
                call(
                    "cudaMemcpyAsync", target_address, source_address, size_bytes, kind, self.handle
                )

    def fill(self, address: int, value: int, size_bytes: int) -> None:
        """Queue setting device bytes to one value.

        Raises:
            Unavailable: the address is of no device memory, or the stream has failed before.
        """
        if size_bytes:
            with current_device(self.device_index):
                call("cudaMemsetAsync", address, value, size_bytes, self.handle)

    def record(self, event: Event | None = None) -> Event:
        """The event, or a new one, at the end of what is queued now."""
        if event is None:
            event = Event(self.device_index)
        call("cudaEventRecord", event.handle, self.handle)
        return event

    def wait_for(self, event: Event) -> None:
        """Queue that what follows starts after the event, also one of another device's stream."""
        call("cudaStreamWaitEvent", self.handle, event.handle, 0)

    def follow(self, other_handle: int) -> None:
        """Queue that what follows starts after all that a foreign stream of this device holds now.

        `torch.cuda.current_stream().cuda_stream` is such a handle, and so is 0, the default stream.
        """
        with current_device(self.device_index):
            event = Event(self.device_index)
            call("cudaEventRecord", event.handle, other_handle)
            self.wait_for(event)
            event.close()

    def precede(self, other_handle: int) -> None:
        """Queue into a foreign stream of this device that it goes on after what is here now."""
        with current_device(self.device_index):
            event = self.record()
            call("cudaStreamWaitEvent", other_handle, event.handle, 0)
            event.close()

    @property
    def is_idle(self) -> bool:
        """Whether everything that was queued is done."""
        return is_ready("cudaStreamQuery", self.handle)

    def wait(self, timeout_s: float) -> None:
        """Block this thread, not the interpreter, until everything queued is done.

        Raises:
            DeadlineExceeded: it was not done in time; it goes on.
            Unavailable: some of it failed.
        """
        wait_until(lambda: self.is_idle, timeout_s, "a stream")

    def close(self) -> None:
        """Give it back; what is queued still runs."""
        self._close()
