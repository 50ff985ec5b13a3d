"""Zeros: which granules of device memory hold nothing else, by every byte of them.

No digest answers that: other bytes can have the digest of zeros, and whoever wants to can make
some. A kernel that ors all words costs no more than one that digests them.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from worldline.cuda.buffer import DeviceBuffer
from worldline.cuda.devices import devices
from worldline.cuda.event import Event
from worldline.cuda.kernel import Arguments, Kernel
from worldline.cuda.memory import DeviceMemory
from worldline.cuda.pinned import PinnedMemory
from worldline.cuda.stream import Stream
from worldline.errors import CapacityExhausted, InvalidInput, InvariantBroken
from worldline.state.digest import GRANULE_BYTES

Granules = npt.NDArray[np.bool_]

#: Of the kernel: bytes that a block of threads reads before it looks for more.
UNIT_BYTES = 64 << 10

_THREADS = 256
_BLOCKS_PER_MULTIPROCESSOR = 8
_ARGUMENT_COUNT = 5
#: Looks at one device at a time; more than a mover has transfers, and few enough that a device that
#: has failed does not make it allocate for ever.
_DESKS_MAX = 256
#: Granules that every desk has room for, so that desks of small runs are not in the way.
_DESK_GRANULES_MIN = 4_096


class ZeroFinder:
    """Looks through memory of one device. May be used from any thread; one for each device.

    Raises:
        InvalidInput: there is no such device.
        Unavailable: there is no compiler.
    """

    def __init__(self, device_index: int) -> None:
        self._device_index = device_index
        self._kernel = Kernel("zeros", device_index)
        self._blocks_max = _BLOCKS_PER_MULTIPROCESSOR * devices()[device_index].multiprocessor_count
        self._lock = threading.Lock()
        self._desks: list[_Desk] = []
        self._desk_count = 0

    def reserve(self, size_bytes: int, granule_bytes: int = GRANULE_BYTES) -> None:
        """Have what a look through so many bytes needs, so that looks allocate nothing.

        Raises:
            CapacityExhausted: no memory for it.
        """
        self._desks.append(self._take(_granules(size_bytes, granule_bytes)))

    def find(
        self,
        run: DeviceBuffer,
        among: Granules | None = None,
        *,
        granule_bytes: int = GRANULE_BYTES,
        timeout_s: float = 10.0,
    ) -> Granules:
        """Look, and wait for the answer: `begin` and `Look.found`.

        Raises:
            InvalidInput, CapacityExhausted, DeadlineExceeded, Unavailable: as these.
        """
        look = self.begin(run, among, granule_bytes=granule_bytes)
        try:
            return look.found(timeout_s)
        finally:
            look.close()

    def begin(
        self,
        run: DeviceBuffer,
        among: Granules | None = None,
        *,
        granule_bytes: int = GRANULE_BYTES,
    ) -> Look:
        """Queue a look: for each granule of the run, whether it holds nothing but zeros.

        Granules count from the run's start. `among`: looks at these alone, of the others the answer
        is False. Returns without waiting. Who writes to the run meanwhile gets one answer or the
        other.

        Raises:
            InvalidInput: `among` has not one element for each granule.
            CapacityExhausted: no memory, or too many looks that have not ended (LOOKS_BUSY).
            Unavailable: the device has failed.
        """
        count = _granules(run.nbytes, granule_bytes)
        if among is not None and among.shape != (count,):
            raise InvalidInput(f"{among.shape} for {count} granules", field="among")
        desk = self._take(count)
        look = Look(desk, count, self._desks)
        if count:
            desk.flags[:count] = 0 if among is None else ~among
            desk.stream.copy(desk.written.address, desk.pinned.address, count)
            arguments = desk.arguments.set(
                run.address, run.nbytes, granule_bytes, count, desk.written.address
            )
            units = -(-granule_bytes // UNIT_BYTES) * count
            self._kernel.launch(desk.stream, min(self._blocks_max, units), _THREADS, arguments)
            desk.stream.copy(desk.pinned.address, desk.written.address, count)
            desk.stream.record(desk.done)
        return look

    def _take(self, count: int) -> _Desk:
        """A desk that is large enough and has nothing left to do, or a new one."""
        with self._lock:
            for index, desk in enumerate(self._desks):
                if desk.written.size_bytes >= count and desk.stream.is_idle:
                    return self._desks.pop(index)
            if self._desk_count >= _DESKS_MAX:
                raise CapacityExhausted(
                    f"{self._desk_count} looks at cuda:{self._device_index} have not ended",
                    reason="LOOKS_BUSY",
                )
            self._desk_count += 1
        try:
            room = max(count, _DESK_GRANULES_MIN)
            return _desk(1 << (room - 1).bit_length(), self._device_index)
        except BaseException:
            with self._lock:
                self._desk_count -= 1
            raise


class Look:
    """A look that the device has begun. Closed once, at the latest when nothing refers to it."""

    def __init__(self, desk: _Desk, count: int, desks: list[_Desk]) -> None:
        self._desk = desk
        self._count = count
        # Without a lock, for finalizers call it.
        self._leave = weakref.finalize(self, desks.append, desk)
        self._leave.atexit = False

    @property
    def is_done(self) -> bool:
        """Whether the answer is there."""
        return self._desk.stream.is_idle

    def found(self, timeout_s: float = 10.0) -> Granules:
        """The answer. Blocks the thread, not the interpreter, and returns a little late.

        Raises:
            InvariantBroken: it is closed.
            DeadlineExceeded: the device did not finish in time; it may still read the run.
            Unavailable: the device has failed.
        """
        if not self._leave.alive:
            raise InvariantBroken("a closed look was asked; its place may be another's")
        self.wait(timeout_s)
        return np.equal(self._desk.flags[: self._count], 0)

    def wait(self, timeout_s: float = 10.0) -> None:
        """Until the device reads the run no more; otherwise as `found`.

        Raises:
            DeadlineExceeded, Unavailable: as `found`.
        """
        if not self.is_done:
            # It has time, and those that move bytes meanwhile need the interpreter.
            self._desk.done.doze(timeout_s)

    def close(self) -> None:
        """Let another look have the place, once the device has done with it."""
        self._leave()


@dataclass(frozen=True, eq=False)
class _Desk:
    """What one look works with, and leaves to the next."""

    stream: Stream
    done: Event
    written: DeviceMemory
    pinned: PinnedMemory
    #: The pinned bytes.
    flags: npt.NDArray[np.uint8]
    arguments: Arguments


def _desk(size_bytes: int, device_index: int) -> _Desk:
    pinned = PinnedMemory(size_bytes, device_index)
    return _Desk(
        stream=Stream(device_index),
        done=Event(device_index),
        written=DeviceMemory(size_bytes, device_index),
        pinned=pinned,
        flags=np.frombuffer(pinned.view, np.uint8),
        arguments=Arguments(_ARGUMENT_COUNT),
    )


def _granules(size_bytes: int, granule_bytes: int) -> int:
    if granule_bytes < 1:
        raise InvalidInput(f"granules of {granule_bytes} bytes", field="granule_bytes")
    return -(-size_bytes // granule_bytes)


def zero_finder(device_index: int) -> ZeroFinder:
    """The one of this device, made when first asked for, which compiles."""
    with _starting:
        return _started(device_index)


_starting = threading.Lock()
_started = cache(ZeroFinder)
