"""Parking: takes a frozen state out of its slot and brings it back, verified both ways.

Going out, the slot and the parked copy are digested independently and compared; coming back, the
slot is digested once more and compared with what was recorded. A copy that differs is never kept;
one that came back different stays where it is, for whoever wants to look at it. The slot itself is
not released here: placement does that when it has the copy on record.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import structlog

from services.mover.crossing import cross, in_thread, settled
from services.mover.crossings import (
    Way,
    back_from_file,
    back_from_memory,
    buffer_maker,
    out_to_file,
    out_to_memory,
    read_back,
)
from services.mover.parkbook import Entry, ParkBook
from services.mover.parkdir import ParkDirectory
from services.mover.parkfile import Sidecar, StateFile, padded_bytes
from services.mover.parkmemory import ParkBuffer, ParkPool
from services.mover.parkorder import ParkFigures, ParkOrder
from services.mover.piecereading import Reading
from services.mover.slots import SlotRef, SlotRole
from worldline.errors import Conflict, IntegrityError, InvalidInput, InvariantBroken, NotFound
from worldline.park import ParkKind
from worldline.state.difference import check_digests, compare, compare_segments
from worldline.state.digest import GRANULE_BYTES, compose
from worldline.state.gf2 import Uint64s
from worldline.state.layout import Layout
from worldline.state.manifest import Digests, Manifest
from worldline.telemetry import span
from worldline.v1 import park_pb2

if TYPE_CHECKING:
    from services.mover.runtime import MoverRuntime

_log = structlog.get_logger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Parked:
    """A parked copy's digests, which are the slot's, and what it took."""

    digests: Digests
    figures: ParkFigures


@dataclass(frozen=True, slots=True)
class Unparked:
    """A LIVE slot that holds the parked state again."""

    slot: SlotRef
    manifest: Manifest
    figures: ParkFigures


class Parking:
    """The parked copies of one mover. Used from its event loop."""

    def __init__(self, runtime: MoverRuntime) -> None:
        settings = runtime.settings
        self._runtime = runtime
        self._directory = (
            None
            if settings.park_dir is None
            else ParkDirectory(settings.park_dir, settings.node_id)
        )
        self.book = ParkBook(
            {
                ParkKind.MEMORY: settings.park_limit_bytes,
                ParkKind.FILE: settings.park_dir_bytes_max,
            }
        )
        self._threads = settings.park_threads
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="park")
        self._memory = ParkPool(settings.park_limit_bytes, buffer_maker(settings.devices))
        #: By park id: the copy in memory, and the CRCs that it was proven by.
        self._buffers: dict[str, tuple[ParkBuffer, Uint64s]] = {}
        self._making: dict[str, asyncio.Task[Parked]] = {}

    async def start(self) -> None:
        """Make buffers ready, and take in the files that an earlier process of this node left.

        Raises:
            Unavailable: the directory cannot be used; `field` is `park_dir`.
            CapacityExhausted: no memory for the buffers.
        """
        settings = self._runtime.settings
        await self._in_thread(
            lambda: self._memory.prepare(settings.park_ready_count, settings.slot_bytes)
        )
        if self._directory is None:
            return
        for found in await self._in_thread(self._directory.open):
            manifest = None if found.sidecar is None else found.sidecar.manifest
            self.book.adopt(
                Entry(
                    park_id=found.park_id,
                    session_id="" if manifest is None else manifest.session_id,
                    kind=ParkKind.FILE,
                    size_bytes=found.size_bytes,
                    since=self._runtime.now(),
                    manifest=manifest,
                    refused=found.refused,
                )
            )

    async def stop(self) -> None:
        """End what is under way, then free the memory. Files stay."""
        tasks = list(self._making.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pool.shutdown(wait=True)
        for buffer, _ in self._buffers.values():
            self._memory.give(buffer)
        self._buffers.clear()
        self._memory.close()

    async def park(self, order: ParkOrder) -> Parked:
        """Copy a frozen LIVE slot out of it, and prove the copy. Repeating it changes nothing.

        Raises:
            IntegrityError: the copy differs from the slot; leaf and granule are named, no copy is
                kept.
            CapacityExhausted: PARK_FULL, PARK_DISK_FULL, MEMORY_EXHAUSTED.
            Conflict: no such kind here (PARK_DIR_UNSET), or the name is taken, or was dropped.
            Fenced, NotFound: the slot is not the session's.
            InvalidInput: the layout is longer than the session's slot.
            TransferFailed: the disk failed.
        """
        known = self.book.find(order.park_id, order.manifest.session_id)
        if known is not None and known.manifest is not None:
            return _again(known, order)
        state = self._runtime.slots.resolve(
            order.slot, order.manifest.session_id, frozenset({SlotRole.LIVE})
        )
        extent_bytes = order.manifest.layout.extent_bytes
        if extent_bytes > state.extent_bytes:
            # Behind its tenant's bytes a slot has what others left there.
            raise InvalidInput(
                f"the layout covers {extent_bytes} bytes, the slot holds {state.extent_bytes}",
                field="manifest.layout.extent_bytes",
            )
        if order.kind is ParkKind.FILE and self._directory is None:
            raise Conflict(
                "this node keeps no states in files: set park_dir of its mover",
                reason="PARK_DIR_UNSET",
                field="kind",
            )
        task = asyncio.ensure_future(self._make(order))
        self._making.setdefault(order.park_id, task)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise Conflict(
                f"parked copy {order.park_id} was dropped while it was made", reason="PARK_DROPPED"
            ) from None
        finally:
            if self._making.get(order.park_id) is task:
                del self._making[order.park_id]

    async def unpark(self, park_id: str, session_id: str, device: str = "") -> Unparked:
        """A LIVE slot on that device (empty: the first) that holds the parked state, proven.

        The copy stays until `drop`.

        Raises:
            NotFound: PARKED_UNKNOWN. Fenced: another session's. Conflict: it is being made.
            IntegrityError: what came back is not what was parked; leaf and granule are named, the
                copy is kept and the slot is not; or the file is damaged.
            CapacityExhausted: no free slot.
            TransferFailed: the disk failed.
        """
        entry = self.book.whole(park_id, session_id)
        manifest = entry.manifest
        if manifest is None:
            raise InvariantBroken(f"parked copy {park_id} is whole and has no manifest")
        self.book.read(park_id)
        try:
            with span("mover.unpark", session_id=session_id, bytes=entry.size_bytes) as active:
                unparked = await self._bring_back(entry, manifest, device)
                active.set(copy_ms=unparked.figures.copy_ms)
                return unparked
        finally:
            if self.book.let_go(park_id):
                await self._free(entry)

    async def drop(self, park_id: str, session_id: str) -> bool:
        """Give a copy up, or one that is being made. False where there is none.

        Raises:
            Fenced: it is another session's.
        """
        return await self._drop(self.book.find(park_id, session_id))

    async def drop_orphan(self, park_id: str) -> bool:
        """Give up a copy that no session names any more. False where there is none."""
        return await self._drop(self.book.find(park_id, None))

    async def _drop(self, entry: Entry | None) -> bool:
        if entry is None:
            return False
        park_id = entry.park_id
        making = self._making.get(park_id)
        if making is not None:
            making.cancel()
            await settled([making])
        elif self.book.drop(park_id):
            await self._free(entry)
        return True

    def listing(self) -> list[park_pb2.ParkedCopy]:
        """Every copy, those being made included, as mover and placement exchange it."""
        now = self._runtime.now()
        return [
            park_pb2.ParkedCopy(
                park_id=entry.park_id,
                session_id=entry.session_id,
                kind=park_pb2.ParkKind.Name(entry.kind),
                extent_bytes=entry.size_bytes,
                age_ms=round((now - entry.since) * 1e3),
                refused="" if entry.refused is None else entry.refused.reason,
            )
            for entry in self.book.entries()
            if not entry.dropped
        ]

    def census(self) -> dict[str, int]:
        """What is held."""
        return {
            "parked": len(self.book),
            "parks_under_way": len(self._making),
            "park_bytes": self.book.used_bytes(ParkKind.MEMORY)
            + self.book.used_bytes(ParkKind.FILE),
        }

    # --- out ---------------------------------------------------------------------------------

    async def _make(self, order: ParkOrder) -> Parked:
        layout, slots = order.manifest.layout, self._runtime.slots
        is_file = order.kind is ParkKind.FILE
        size_bytes = padded_bytes(layout.extent_bytes) if is_file else layout.extent_bytes
        session_id = order.manifest.session_id
        self.book.begin(order.park_id, session_id, order.kind, size_bytes, self._runtime.now())
        slots.pin(order.slot)
        try:
            with span("mover.park", session_id=session_id, bytes=layout.extent_bytes) as active:
                parked = await (self._to_file(order) if is_file else self._to_memory(order))
                active.set(kind=order.kind.name, copy_ms=parked.figures.copy_ms)
        except BaseException:
            self.book.drop(order.park_id)
            raise
        finally:
            slots.unpin(order.slot, self._runtime.now())
        self.book.finish(order.park_id, replace(order.manifest, digests=parked.digests))
        return parked

    async def _to_memory(self, order: ParkOrder) -> Parked:
        layout, memory = order.manifest.layout, self._runtime.slot_memory(order.slot)
        buffer = await self._in_thread(
            lambda: self._memory.take(layout.extent_bytes), self._memory.give
        )
        try:
            way = await self._in_thread(lambda: out_to_memory(layout, memory, buffer), Way.close)
            try:
                clock = _Clock(layout.extent_bytes)

                def prove() -> Uint64s:
                    clock.copied()
                    return _proven(layout, way.before, way.after)

                crcs = await self._cross(way, layout, prove)
                figures = clock.figures()
            finally:
                await self._in_thread(way.close)
            digests = await self._in_thread(lambda: compose(layout, crcs))
        except BaseException:
            self._memory.give(buffer)
            raise
        self._buffers[order.park_id] = buffer, crcs
        return Parked(digests, figures)

    async def _to_file(self, order: ParkOrder) -> Parked:
        layout, directory = order.manifest.layout, self._open_directory()
        clock = _Clock(layout.extent_bytes)
        try:
            file = await self._in_thread(lambda: directory.create(order.park_id), StateFile.close)
            try:
                digests = await self._write_and_read(order, file, clock)
            finally:
                await self._in_thread(file.close)
            sidecar = Sidecar(
                order.park_id,
                self._runtime.node_id,
                padded_bytes(layout.extent_bytes),
                replace(order.manifest, digests=digests),
            )
            await self._in_thread(lambda: directory.finish(sidecar))
        except BaseException:
            await self._in_thread(lambda: directory.abandon(order.park_id))
            raise
        return Parked(digests, clock.figures(direct_io=file.direct))

    async def _write_and_read(self, order: ParkOrder, file: StateFile, clock: _Clock) -> Digests:
        layout, memory = order.manifest.layout, self._runtime.slot_memory(order.slot)
        out = await self._in_thread(lambda: out_to_file(layout, memory, file), Way.close)
        try:
            await self._cross(out, layout, clock.copied)
            again = read_back(layout, file)
            crcs = await self._cross(
                again, layout, lambda: _proven(layout, out.before, again.after)
            )
        finally:
            await self._in_thread(out.close)
        return await self._in_thread(lambda: compose(layout, crcs))

    async def _cross(self, way: Way, layout: Layout, then: Callable[[], T]) -> T:
        return await cross(way.crossing, layout.extent_bytes, self._pool, self._threads, then)

    # --- back --------------------------------------------------------------------------------

    async def _bring_back(self, entry: Entry, manifest: Manifest, device: str) -> Unparked:
        runtime, extent_bytes = self._runtime, manifest.layout.extent_bytes
        slot = await runtime.allocate_shadow(manifest.session_id, extent_bytes, device)
        runtime.slots.pin(slot)
        try:
            if entry.kind is ParkKind.FILE:
                manifest, figures = await self._from_file(entry.park_id, slot)
            else:
                figures = await self._from_memory(entry.park_id, manifest, slot)
            runtime.slots.promote(slot, runtime.now())
        except BaseException:
            runtime.slots.release(slot, runtime.now())
            raise
        finally:
            runtime.slots.unpin(slot, runtime.now())
        return Unparked(slot, manifest, figures)

    async def _from_memory(self, park_id: str, manifest: Manifest, slot: SlotRef) -> ParkFigures:
        layout, memory = manifest.layout, self._runtime.slot_memory(slot)
        buffer, crcs = self._buffers[park_id]
        return await self._installed(layout, crcs, lambda: back_from_memory(layout, buffer, memory))

    async def _from_file(self, park_id: str, slot: SlotRef) -> tuple[Manifest, ParkFigures]:
        directory, memory = self._open_directory(), self._runtime.slot_memory(slot)
        # Read again: what lies there now is what comes back, and not what lay there once.
        sidecar, file = await self._in_thread(
            lambda: directory.load(park_id), lambda loaded: loaded[1].close()
        )
        manifest = sidecar.manifest
        try:
            figures = await self._installed(
                manifest.layout,
                manifest.digests,
                lambda: back_from_file(manifest.layout, file, memory),
            )
        finally:
            await self._in_thread(file.close)
        return manifest, replace(figures, direct_io=file.direct)

    async def _installed(
        self, layout: Layout, parked: Uint64s | Digests | None, make: Callable[[], Way]
    ) -> ParkFigures:
        """Bring a state back and see that the slot holds what was parked.

        `parked` is what the copy was proven by: CRCs by segment where they are still known, which
        spares composing, else the digests on record.
        """
        way = await self._in_thread(make, Way.close)
        try:
            clock = _Clock(layout.extent_bytes)

            def compare_parked() -> None:
                clock.copied()
                _same_as_parked(layout, parked, way.after)

            await self._cross(way, layout, compare_parked)
            return clock.figures()
        finally:
            await self._in_thread(way.close)

    async def _free(self, entry: Entry) -> None:
        if entry.kind is ParkKind.MEMORY:
            self._memory.give(self._buffers.pop(entry.park_id)[0])
        else:
            directory = self._open_directory()
            await self._in_thread(lambda: directory.drop(entry.park_id))
        _log.info("park.dropped", park_id=entry.park_id, session_id=entry.session_id)

    def _open_directory(self) -> ParkDirectory:
        if self._directory is None:
            raise NotFound("this mover keeps no files", reason="PARKED_UNKNOWN", field="park_id")
        return self._directory

    async def _in_thread(self, work: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        return await in_thread(self._pool, work, undo)


class _Clock:
    """Times one crossing."""

    def __init__(self, copied_bytes: int) -> None:
        self._copied_bytes = copied_bytes
        self._began = self._copied_at = time.monotonic()

    def copied(self) -> None:
        """The last byte is where it belongs; for any thread."""
        self._copied_at = time.monotonic()

    def figures(self, *, direct_io: bool = False) -> ParkFigures:
        """Until now."""
        return ParkFigures(
            copied_bytes=self._copied_bytes,
            copy_ms=(self._copied_at - self._began) * 1e3,
            verify_ms=(time.monotonic() - self._copied_at) * 1e3,
            direct_io=direct_io,
        )


def _proven(layout: Layout, before: Reading | None, after: Reading | None) -> Uint64s:
    """The copy's CRCs by segment, if they are the slot's.

    Raises:
        IntegrityError: they are not.
    """
    slot, copy = _read(before), _read(after)
    difference = compare_segments(layout, GRANULE_BYTES, slot, copy)
    if difference is not None:
        raise IntegrityError(
            f"the parked copy differs from the slot: {difference.message}",
            leaf=difference.leaf,
            granule=difference.granule,
        )
    return copy


def _same_as_parked(
    layout: Layout, parked: Uint64s | Digests | None, after: Reading | None
) -> None:
    """What came back is what was parked.

    Raises:
        IntegrityError: it is not.
    """
    crcs = _read(after)
    if parked is None or isinstance(parked, Digests):
        expected = check_digests(layout, parked, "the parked manifest")
        difference = compare(layout, expected, compose(layout, crcs))
    else:
        difference = compare_segments(layout, GRANULE_BYTES, parked, crcs)
    if difference is not None:
        raise IntegrityError(
            f"the parked copy is not what was parked: {difference.message}",
            leaf=difference.leaf,
            granule=difference.granule,
        )


def _read(reading: Reading | None) -> Uint64s:
    if reading is None:
        raise InvariantBroken("a side that nobody has read cannot be compared")
    return reading.segment_crcs()


def _again(known: Entry, order: ParkOrder) -> Parked:
    """The answer to a repeated call.

    Raises:
        Conflict: the name was used for another state.
    """
    manifest = known.manifest
    if manifest is None or manifest.digests is None or known.kind is not order.kind:
        raise Conflict(f"parked copy {order.park_id} is another", reason="PARK_EXISTS")
    if replace(manifest, digests=None) != order.manifest:
        raise Conflict(f"parked copy {order.park_id} is of another state", reason="PARK_EXISTS")
    return Parked(manifest.digests, ParkFigures(manifest.layout.extent_bytes, 0.0, 0.0))
