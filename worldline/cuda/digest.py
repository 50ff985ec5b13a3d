"""Digest: CRC-64/NVME of a slot in device memory, where it rests, while the host goes on.

Equal, segment by segment, to what `worldline.state.digest.Digester` gives for the same bytes.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from worldline.cuda.crc64 import MATRIX_BYTES, ROW_BYTES, tables, units_of
from worldline.cuda.devices import devices
from worldline.cuda.event import Event
from worldline.cuda.kernel import Arguments, Kernel
from worldline.cuda.memory import DeviceMemory
from worldline.cuda.pinned import PinnedMemory
from worldline.cuda.stream import Stream
from worldline.cuda.table import upload
from worldline.errors import InvalidInput, InvariantBroken, Unavailable
from worldline.state.digest import GRANULE_BYTES, compose
from worldline.state.gf2 import Uint64s
from worldline.state.layout import Layout
from worldline.state.manifest import Digests
from worldline.state.segments import Segments, segments_of

#: The first architecture whose tensor cores multiply bits by `and`.
CAPABILITY_MIN = (8, 0)

_THREADS = 512
#: Layouts of which tables are kept on a device; each costs about 20 bytes a segment.
_REMEMBERED_COUNT = 8
_ARGUMENT_COUNT = 7


class Run(Protocol):
    """Bytes on a device: a `DeviceBuffer`, or what a transport hands on as one."""

    @property
    def address(self) -> int:
        """Of the first byte."""

    @property
    def nbytes(self) -> int:
        """Length."""


class CudaDigester:
    """Digests a slot on a device run by run, in any order, while other runs still move.

    Made before the time that counts: the first of a layout builds tables, and the first of a
    device compiles. `update` then costs the host microseconds. A run given twice counts with its
    last bytes. Not for several threads at once.

    Raises:
        InvalidInput: the granule has no valid size, or there is no such device.
        Unavailable: the device is older than compute capability 8.0 (reason DEVICE_TOO_OLD), or
            there is no compiler.
        CapacityExhausted: no memory for the tables.
    """

    def __init__(
        self, layout: Layout, device_index: int, granule_bytes: int = GRANULE_BYTES
    ) -> None:
        self._layout = layout
        self._segments = segments_of(layout, granule_bytes)
        self._engine = _engine(device_index)
        self._tables = self._engine.tables_of(layout, self._segments)
        self._desk = self._engine.desk(self._segments.count)
        self._leave = weakref.finalize(self, self._engine.take_back, self._desk)
        self._leave.atexit = False
        self._was_read = np.zeros(self._segments.granule_count, np.bool_)
        self._engine.clear(self._desk, self._tables, range(self._segments.count))

    @property
    def granule_count(self) -> int:
        """Granules of the layout's extent."""
        return self._segments.granule_count

    @property
    def stream(self) -> Stream:
        """Where the work is queued, in the order of the calls."""
        return self._desk.stream

    def update(
        self, first_granule: int, granule_count: int, run: Run, after: Event | None = None
    ) -> None:
        """Queue the digest of a run of granules, whose bytes must rest until it is done.

        `run` is exactly those bytes, on this device; they are read after `after`, or at once.
        Returns without waiting.

        Raises:
            InvalidInput: the run lies outside the extent, or has another size.
            InvariantBroken: the digester is closed.
            Unavailable: the device has failed.
        """
        self._check_open()
        segments = self._segments
        indices = segments.run(first_granule, granule_count)
        start_bytes = int(segments.bounds[indices.start])
        size_bytes = int(segments.bounds[indices.stop]) - start_bytes
        if run.nbytes != size_bytes:
            raise InvalidInput(f"{run.nbytes} bytes for a run of {size_bytes}", field="run")
        read = self._was_read[first_granule : first_granule + granule_count]
        if indices:
            if after is not None:
                self._desk.stream.wait_for(after)
            if read.any():
                self._engine.clear(self._desk, self._tables, indices)
            origin = run.address - start_bytes
            self._engine.queue(self._desk, self._tables, origin, indices)
        read[:] = True
        if self._was_read.all():
            # At once: whoever asks has been waiting for no more than this.
            self._desk.copy_back(segments.count)

    @property
    def is_idle(self) -> bool:
        """Whether all that was queued is done."""
        return self._desk.stream.is_idle

    def segment_crcs(self, timeout_s: float = 10.0) -> Uint64s:
        """CRC of every segment of the layout, once every granule was given to `update`.

        Waits for what is queued, without holding the interpreter.

        Raises:
            InvariantBroken: a granule was never given to `update`, or the digester was closed.
            DeadlineExceeded: the device did not finish in time.
            Unavailable: the device has failed.
        """
        self._check_open()
        if not self._was_read.all():
            granule = int(np.argmin(self._was_read))
            raise InvariantBroken(f"granule {granule} was never digested", granule=granule)
        self._desk.stream.wait(timeout_s)
        return self._desk.copied_back(self._segments.count)

    def wait(self, timeout_s: float = 10.0) -> None:
        """Wait until nothing that is queued reads the slot any more.

        Raises:
            DeadlineExceeded, Unavailable: as `segment_crcs`.
        """
        self._desk.stream.wait(timeout_s)

    def digests(self, timeout_s: float = 10.0) -> Digests:
        """All digests, as `segment_crcs` and composed."""
        crcs = self.segment_crcs(timeout_s)
        return compose(self._layout, crcs, self._segments.granule_bytes)

    def close(self) -> None:
        """Let another digester have the stream and the memory; what is queued still runs."""
        self._leave()

    def _check_open(self) -> None:
        if not self._leave.alive:
            raise InvariantBroken("a closed digester was used; its place may be another's")


@dataclass(frozen=True, eq=False)
class _Desk:
    """What one digester works with, and leaves to the next: no move allocates on the device."""

    stream: Stream
    crcs: DeviceMemory
    copied: PinnedMemory
    arguments: Arguments

    def copy_back(self, count: int) -> None:
        """Queue that the host has so many CRCs."""
        self.stream.copy(self.copied.address, self.crcs.address, 8 * count)

    def copied_back(self, count: int) -> Uint64s:
        """What the host has; the stream must be idle."""
        return np.frombuffer(self.copied.view, np.uint64, count).copy()


@dataclass(frozen=True, eq=False)
class _LayoutTables:
    """What the kernel reads of one layout."""

    segments: Segments
    bounds: DeviceMemory
    #: What the initial value and the final xor add to each segment.
    zeros: DeviceMemory
    #: By where in a row of memory the extent begins; slots are aligned, so there is one.
    units: dict[int, tuple[DeviceMemory, npt.NDArray[np.uint32]]] = field(default_factory=dict)


class _Engine:
    """The kernel on one device, its tables, and the desks that digesters take and leave."""

    def __init__(self, device_index: int) -> None:
        found = devices()
        self._kernel = Kernel("crc64", device_index, shared_bytes=MATRIX_BYTES)
        self._device_index = device_index
        self._blocks_max = found[device_index].multiprocessor_count
        self._uploads = Stream(device_index)
        self._constants = upload(tables(), self._uploads)
        self._lock = threading.Lock()
        self._layouts: OrderedDict[tuple[bytes, int], _LayoutTables] = OrderedDict()
        self._desks: list[_Desk] = []

    def tables_of(self, layout: Layout, segments: Segments) -> _LayoutTables:
        """The tables of a layout, made once."""
        key = (layout.topology_hash, segments.granule_bytes)
        with self._lock:
            known = self._layouts.get(key)
            if known is None:
                known = _LayoutTables(
                    segments=segments,
                    bounds=upload(segments.bounds, self._uploads),
                    zeros=upload(segments.zeros, self._uploads),
                )
                self._units(known, 0)
                self._layouts[key] = known
            self._layouts.move_to_end(key)
            if len(self._layouts) > _REMEMBERED_COUNT:
                self._layouts.popitem(last=False)  # freed with the last digester that uses it
            return known

    def desk(self, segment_count: int) -> _Desk:
        """A free desk that is large enough and has nothing left to do, or a new one."""
        size_bytes = 8 * max(segment_count, 1)
        with self._lock:
            for index, desk in enumerate(self._desks):
                if desk.crcs.size_bytes >= size_bytes and desk.stream.is_idle:
                    return self._desks.pop(index)
        rounded_bytes = 1 << (size_bytes - 1).bit_length()
        return _Desk(
            stream=Stream(self._device_index),
            crcs=DeviceMemory(rounded_bytes, self._device_index),
            copied=PinnedMemory(rounded_bytes, self._device_index),
            arguments=Arguments(_ARGUMENT_COUNT),
        )

    def take_back(self, desk: _Desk) -> None:
        """The desk of a digester that has closed; without a lock, for finalizers call it."""
        self._desks.append(desk)

    def clear(self, desk: _Desk, known: _LayoutTables, indices: range) -> None:
        """Queue that these segments begin anew: a kernel adds to what stands there."""
        offset_bytes, size_bytes = 8 * indices.start, 8 * len(indices)
        zeros = known.zeros.address + offset_bytes
        desk.stream.copy(desk.crcs.address + offset_bytes, zeros, size_bytes)

    def queue(self, desk: _Desk, known: _LayoutTables, origin: int, indices: range) -> None:
        """Digest cleared segments of an extent that begins at this address; one launch."""
        memory, before = known.units.get(origin % ROW_BYTES) or self._units(known, origin)
        units = int(before[indices.stop]) - int(before[indices.start])
        arguments = desk.arguments.set(
            origin % (1 << 64),
            known.bounds.address,
            memory.address,
            indices.start,
            indices.stop,
            self._constants.address,
            desk.crcs.address,
        )
        self._kernel.launch(desk.stream, min(self._blocks_max, units), _THREADS, arguments)

    def _units(
        self, known: _LayoutTables, origin: int
    ) -> tuple[DeviceMemory, npt.NDArray[np.uint32]]:
        units = units_of(known.segments, origin)
        known.units[origin % ROW_BYTES] = upload(units, self._uploads), units
        return known.units[origin % ROW_BYTES]


def _engine(device_index: int) -> _Engine:
    with _starting:
        return _started(device_index)


_starting = threading.Lock()


@cache
def _started(device_index: int) -> _Engine:
    found = devices()
    if not 0 <= device_index < len(found):
        raise InvalidInput(f"device {device_index} of {len(found)}", field="device_index")
    if found[device_index].compute_capability < CAPABILITY_MIN:
        raise Unavailable(
            f"{found[device_index].name} has compute capability "
            f"{found[device_index].compute_capability}; digests need {CAPABILITY_MIN}",
            reason="DEVICE_TOO_OLD",
        )
    return _Engine(device_index)
