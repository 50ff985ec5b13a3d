"""Device crossings: between a slot on a GPU and a parked copy in pinned memory or in a file.

The slot is digested where it is, by the device; a copy in host memory by threads, piece by piece,
while the device copies on. Coming back nothing but the slot is digested: that reads what was
installed, and with it every byte of the pinned memory and of the way.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from services.mover.chunking import Chunk, ChunkPlan
from services.mover.crossing import Carry, Crossing
from services.mover.hostcrossing import part_of
from services.mover.parkfile import StateFile, padded_bytes
from services.mover.parkmemory import ParkBuffer
from services.mover.piecereading import PieceReading
from services.mover.pieces import pieces_of
from worldline.cuda import late
from worldline.cuda.buffer import DeviceBuffer
from worldline.cuda.digest import CudaDigester
from worldline.cuda.event import Event
from worldline.cuda.pinned import PinnedMemory
from worldline.cuda.stream import Stream
from worldline.errors import DeadlineExceeded, WorldlineError
from worldline.state.digest import GRANULE_BYTES

#: A copy between device and host takes milliseconds; a device that needs this long has failed.
_DEVICE_S = 30.0
#: What is copied at once on the way back, where the device digests each piece while the next is
#: copied: enough that queueing it costs nothing beside it.
_BACK_BYTES = 64 * GRANULE_BYTES
#: What a thread moves at once between a device and a file.
_PART_BYTES = 4 * GRANULE_BYTES


class PinnedBuffer(ParkBuffer):
    """Pinned host memory, to which and from which devices copy at the speed of the bus.

    Raises:
        CapacityExhausted: MEMORY_EXHAUSTED, the host pins no more.
    """

    def __init__(self, size_bytes: int, device_index: int) -> None:
        self.size_bytes = size_bytes
        self._memory = PinnedMemory(max(1, size_bytes), device_index)

    @property
    def view(self) -> memoryview:
        """The bytes."""
        return self._memory.view

    def close(self) -> None:
        """Unpin, now or with the last view."""
        self._memory.close()


class DeviceToPinned(Crossing):
    """Copies a slot on a device to pinned memory; digests both."""

    def __init__(
        self, slot: DeviceBuffer, copy: memoryview, *, before: CudaDigester, after: PieceReading
    ) -> None:
        self._slot = slot
        self._copy = copy
        self._before = before
        self._after = after
        self._stream = Stream(slot.device_index)
        self._copied: list[Event] = []

    def chunks(self, extent_bytes: int) -> Sequence[Chunk]:
        """The pieces that the device copies."""
        return pieces_of(extent_bytes)

    def begin(self) -> None:
        """Give the device all its work: the digest, and beside it the copies in order."""
        self._before.update(0, self._before.granule_count, self._slot)
        target, source = address_of(self._copy), self._slot.address
        for piece in self.chunks(self._slot.nbytes):
            at_bytes = piece.offset_bytes
            self._stream.copy(target + at_bytes, source + at_bytes, piece.size_bytes)
            self._copied.append(self._stream.record())

    @contextmanager
    def lane(self) -> Iterator[Carry]:
        """Needs nothing of its own."""
        yield self._carry

    def await_chunk(self, chunk: Chunk) -> None:
        """Ask the device now and then: those that digest need the interpreter."""
        self._copied[chunk.index].doze(_DEVICE_S)

    def _carry(self, chunk: Chunk) -> None:
        self._after.read(chunk, part_of(self._copy, chunk))

    def beside(self) -> None:
        """The device has digested the slot long before it has copied it."""
        self._after.expect()

    def settle(self) -> None:
        """Wait for the device; its digest is waited for where it is collected."""
        settle(self._stream, self._before)

    def close(self) -> None:
        """See `Crossing.close`."""
        self._stream.close()
        for event in self._copied:
            event.close()


class PinnedToDevice(Crossing):
    """Copies pinned memory to a slot on a device, which digests what has arrived."""

    chunk_bytes = _BACK_BYTES
    carries = False

    def __init__(self, copy: memoryview, slot: DeviceBuffer, after: CudaDigester) -> None:
        self._copy = copy
        self._slot = slot
        self._after = after
        self._stream = Stream(slot.device_index)
        self._arrived: list[Event] = []

    def begin(self) -> None:
        """Give the device all its work: each piece is digested while the next is copied."""
        source = address_of(self._copy)
        for chunk in ChunkPlan(self._slot.nbytes, self.chunk_bytes, GRANULE_BYTES):
            part = self._slot.part(chunk.offset_bytes, chunk.size_bytes)
            self._stream.copy(part.address, source + chunk.offset_bytes, chunk.size_bytes)
            event = self._stream.record()
            self._arrived.append(event)
            self._after.update(chunk.first_granule, chunk.granule_count, part, event)

    def end(self) -> None:
        """Wait for the copies; the digest is waited for where it is collected."""
        self._stream.wait(_DEVICE_S)

    def settle(self) -> None:
        """Wait for the device."""
        settle(self._stream, self._after)

    def close(self) -> None:
        """See `Crossing.close`."""
        self._stream.close()
        for event in self._arrived:
            event.close()


class DeviceToFile(Crossing):
    """Writes a slot on a device to a file through pinned buffers; the device digests the slot."""

    chunk_bytes = _PART_BYTES

    def __init__(self, slot: DeviceBuffer, file: StateFile, before: CudaDigester) -> None:
        self._slot = slot
        self._file = file
        self._before = before

    def begin(self) -> None:
        """Let the device digest the slot beside everything else."""
        self._before.update(0, self._before.granule_count, self._slot)

    @contextmanager
    def lane(self) -> Iterator[Carry]:
        """A pinned buffer and a stream for each thread: one copies while others write."""
        with staging(self._slot.device_index, self.chunk_bytes) as (pinned, stream):
            yield lambda chunk: self._carry(chunk, pinned, stream)

    def _carry(self, chunk: Chunk, pinned: PinnedMemory, stream: Stream) -> None:
        source = self._slot.address + chunk.offset_bytes
        stream.copy(pinned.address, source, chunk.size_bytes)
        stream.wait(_DEVICE_S)
        # What lies behind the extent in the last block is nobody's.
        size_bytes = padded_bytes(chunk.size_bytes)
        pinned.view[chunk.size_bytes : size_bytes] = bytes(size_bytes - chunk.size_bytes)
        self._file.write(chunk.offset_bytes, pinned.view[:size_bytes])

    def end(self) -> None:
        """Wait for the disk."""
        self._file.sync()

    def settle(self) -> None:
        """Wait for the device."""
        with suppress(WorldlineError):
            self._before.wait()


class FileToDevice(Crossing):
    """Reads a file into a slot on a device through pinned buffers; the device digests the slot."""

    chunk_bytes = _PART_BYTES

    def __init__(self, file: StateFile, slot: DeviceBuffer, after: CudaDigester) -> None:
        self._file = file
        self._slot = slot
        self._after = after

    @contextmanager
    def lane(self) -> Iterator[Carry]:
        """A pinned buffer and a stream for each thread: one copies while others read."""
        with staging(self._slot.device_index, self.chunk_bytes) as (pinned, stream):
            yield lambda chunk: self._carry(chunk, pinned, stream)

    def _carry(self, chunk: Chunk, pinned: PinnedMemory, stream: Stream) -> None:
        self._file.read(chunk.offset_bytes, pinned.view[: padded_bytes(chunk.size_bytes)])
        target = self._slot.address + chunk.offset_bytes
        stream.copy(target, pinned.address, chunk.size_bytes)
        stream.wait(_DEVICE_S)

    def end(self) -> None:
        """Every byte is there: let the device read them all."""
        self._after.update(0, self._after.granule_count, self._slot)

    def settle(self) -> None:
        """Wait for the device."""
        with suppress(WorldlineError):
            self._after.wait()


@contextmanager
def staging(device_index: int, size_bytes: int) -> Iterator[tuple[PinnedMemory, Stream]]:
    """A thread's own pinned buffer and stream; nothing uses them any more at the end."""
    pinned, stream = PinnedMemory(size_bytes, device_index), Stream(device_index)
    try:
        yield pinned, stream
    finally:
        _settle_copies(stream, pinned.close)
        stream.close()


def settle(stream: Stream, digester: CudaDigester) -> None:
    """Wait until the device touches neither side any more; one that has failed never will."""
    _settle_copies(stream)
    with suppress(WorldlineError):
        digester.wait()


def _settle_copies(stream: Stream, then: Callable[[], None] = lambda: None) -> None:
    """`then` once they are made, or never will be; their slot is nobody else's before."""
    try:
        stream.wait(_DEVICE_S)
    except DeadlineExceeded:
        with suppress(WorldlineError):
            late.leave(stream, then)
            return
    except WorldlineError:
        pass
    then()


def address_of(view: memoryview) -> int:
    """Of its first byte; 0 of none."""
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(view)) if view.nbytes else 0
