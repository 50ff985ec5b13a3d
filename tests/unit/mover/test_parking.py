"""Parking over both kinds: the same promises held for memory and for files."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from services.mover import filecrossing, hostcrossing, parkfile
from services.mover import parking as parking_module
from services.mover.slots import SlotRole
from services.mover.transport.memory import MemoryTransport
from tests.unit.mover.cluster import (
    LEAF_BYTES,
    MEBIBYTE,
    Cluster,
    layout_of,
    start_admission,
    start_node,
    until,
)
from tests.unit.mover.parkbench import KINDS, SESSION, Bench, flip_in
from worldline.errors import (
    CapacityExhausted,
    Conflict,
    Fenced,
    IntegrityError,
    InvalidInput,
    NotFound,
)
from worldline.state.codec import digests_from_proto, manifest_from_proto, manifest_to_proto
from worldline.state.digest import digest_slot
from worldline.v1 import move_pb2


@pytest.fixture(params=KINDS)
async def bench(
    request: pytest.FixtureRequest, build: Callable[..., Any], tmp_path: Path
) -> AsyncIterator[Bench]:
    directory = tmp_path / "parked"
    cluster = await build(
        MemoryTransport(), MemoryTransport(), park_dir=directory, park_bytes_max=24 * MEBIBYTE
    )
    made = Bench(cluster, request.param, directory)
    yield made
    made.check_idle()


def leaf_at(offset_bytes: int) -> str:
    ends = [sum(LEAF_BYTES[: index + 1]) for index in range(len(LEAF_BYTES))]
    return f"leaf{next(index for index, end in enumerate(ends) if offset_bytes < end)}"


async def test_out_and_back(bench: Bench) -> None:
    slot = await bench.live()
    data = bench.bytes_of(slot)
    parked = await bench.park(slot)
    digests = digests_from_proto(parked.digests, bench.layout)
    assert digests == digest_slot(bench.layout, memoryview(data))
    assert parked.stats.copied_bytes == bench.layout.extent_bytes
    assert bench.roles()[0] is SlotRole.LIVE, "the slot is placement's to release"
    assert await bench.cluster.release("a", slot)
    bench.cluster.view("a", slot)[: len(data)] = bytes(len(data))  # the next tenant

    back = await bench.unpark()
    assert bench.bytes_of(back.slot) == data
    assert bench.node.role(back.slot) is SlotRole.LIVE
    assert back.slot.generation != slot.generation or back.slot.slot_index != slot.slot_index
    manifest = manifest_from_proto(back.manifest)
    assert manifest.digests == digests
    assert (manifest.session_id, manifest.block_index) == (SESSION, 17)
    assert manifest.layout.scalar_values() == {"step": 3}

    (listed,) = await bench.listed()
    assert (listed.park_id, listed.session_id, listed.refused) == ("park-1", SESSION, "")
    assert await bench.drop()
    assert not await bench.drop()
    assert await bench.listed() == []
    with pytest.raises(NotFound) as caught:
        await bench.unpark()
    assert caught.value.reason == "PARKED_UNKNOWN"


@pytest.mark.parametrize("sizes", [(0,), (1,), (4096,), (MEBIBYTE,), (MEBIBYTE + 4095, 1, 4097)])
async def test_any_size(bench: Bench, sizes: tuple[int, ...]) -> None:
    bench.layout = layout_of(sizes)
    data = await bench.parked()
    back = await bench.unpark()
    assert bench.bytes_of(back.slot) == data


async def test_direct_io_is_used_where_there_is_any(bench: Bench) -> None:
    parked = await bench.park(await bench.live())
    directory = bench.node.runtime.parking._directory
    assert directory is not None
    assert parked.stats.direct_io == (bench.kind == "FILE" and directory.direct)


async def test_a_repeated_call_changes_nothing(bench: Bench) -> None:
    slot = await bench.live()
    first = await bench.park(slot)
    again = await bench.park(slot)
    assert again.digests == first.digests
    assert len(await bench.listed()) == 1
    other = bench.cluster.manifest(bench.layout, block_index=18)
    with pytest.raises(Conflict) as caught:
        await bench.park(slot, manifest=manifest_to_proto(other))
    assert caught.value.reason == "PARK_EXISTS"


async def test_only_the_sessions_own_live_slot_is_parked(bench: Bench) -> None:
    slot = await bench.live()
    stale = move_pb2.SlotRef(node_id="a", slot_index=0, generation=slot.generation - 1)
    with pytest.raises(Fenced):
        await bench.park(stale)
    foreign = bench.cluster.manifest(bench.layout, session_id="session-2")
    with pytest.raises(Fenced):
        await bench.park(slot, manifest=manifest_to_proto(foreign))
    with pytest.raises(InvalidInput) as caught:
        await bench.park(slot, park_id="../up")
    assert caught.value.field == "park_id"
    with pytest.raises(InvalidInput) as caught:
        await bench.park(slot, kind="PARK_KIND_UNSPECIFIED")
    assert caught.value.field == "kind"
    assert await bench.listed() == []


@pytest.mark.parametrize("extent_bytes", [sum(LEAF_BYTES) + 1, 20 * MEBIBYTE, 1 << 50])
async def test_a_layout_longer_than_its_slot_is_refused(bench: Bench, extent_bytes: int) -> None:
    """Within the slot's memory it would park, and give the session, what others left there."""
    slot = await bench.live()
    longer = bench.cluster.manifest(layout_of((extent_bytes,)))
    with pytest.raises(InvalidInput) as caught:
        await bench.park(slot, manifest=manifest_to_proto(longer))
    assert caught.value.field == "manifest.layout.extent_bytes"
    assert await bench.listed() == []
    bench.check_idle()
    await bench.park(slot)


async def test_another_session_gets_nothing(bench: Bench) -> None:
    await bench.parked()
    with pytest.raises(Fenced):
        await bench.unpark(session_id="session-2")
    with pytest.raises(Fenced):
        await bench.drop(session_id="session-2")
    assert len(await bench.listed()) == 1
    assert set(bench.roles()) == {SlotRole.FREE}


# --- one wrong bit -----------------------------------------------------------------------------


async def test_a_battery_of_bits_flipped_at_rest(bench: Bench) -> None:
    """None missed, each named; and what was flipped back is whole again."""
    data = await bench.parked()
    dice = random.Random(11)
    offsets = [0, bench.layout.extent_bytes - 1, *LEAF_BYTES[:1]]
    offsets += [dice.randrange(bench.layout.extent_bytes) for _ in range(40)]
    for offset in offsets:
        bit = dice.randrange(8)
        bench.flip(offset, bit)
        with pytest.raises(IntegrityError) as caught:
            await bench.unpark()
        assert caught.value.reason == "DIGEST_MISMATCH"
        assert caught.value.leaf == leaf_at(offset)
        assert caught.value.granule == offset // MEBIBYTE
        assert set(bench.roles()) == {SlotRole.FREE}, "nothing is installed"
        bench.flip(offset, bit)
    back = await bench.unpark()
    assert bench.bytes_of(back.slot) == data


@pytest.mark.parametrize("side", ["before the copy", "after the copy"])
async def test_a_bit_flipped_on_the_way_out(
    bench: Bench, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the source after its digest, or in the copy while it is made: the slot is kept."""
    offset = LEAF_BYTES[0] + 100
    flipped = threading.Event()

    def once(view: memoryview, at_bytes: int) -> None:
        if at_bytes <= offset < at_bytes + view.nbytes and not flipped.is_set():
            flipped.set()
            view[offset - at_bytes] ^= 8

    slot = await bench.live()
    base = slot_address(bench.cluster.view("a", slot))

    def copy(target: memoryview, source: memoryview) -> None:
        at_bytes = slot_address(source) - base
        if side == "before the copy":
            once(source, at_bytes)
        plain_copy(target, source)
        if side == "after the copy":
            once(target, at_bytes)

    def write(self: parkfile.StateFile, at_bytes: int, view: memoryview) -> None:
        if side == "before the copy":
            once(view, at_bytes)
            plain_write(self, at_bytes, view)
            return
        plain_write(self, at_bytes, view)
        if at_bytes <= offset < at_bytes + view.nbytes and not flipped.is_set():
            flipped.set()
            flip_in(self.path, offset, 3)

    plain_copy, plain_write = hostcrossing.copy_bytes, parkfile.StateFile.write
    if bench.kind == "MEMORY":
        monkeypatch.setattr(hostcrossing, "copy_bytes", copy)
    else:
        monkeypatch.setattr(parkfile.StateFile, "write", write)
    with pytest.raises(IntegrityError) as caught:
        await bench.park(slot)
    assert flipped.is_set()
    assert (caught.value.leaf, caught.value.granule) == ("leaf1", offset // MEBIBYTE)
    assert bench.node.role(slot) is SlotRole.LIVE
    assert await bench.listed() == [], "a copy that differs is never kept"
    monkeypatch.undo()
    await bench.park(slot)


async def test_a_bit_flipped_on_the_way_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the slot, once the bytes lie there: the copy is kept and the next try succeeds."""
    data = await bench.parked()
    flipped = threading.Event()

    def once(view: memoryview) -> None:
        if not flipped.is_set():
            flipped.set()
            view[17] ^= 1

    def copy(target: memoryview, source: memoryview) -> None:
        plain_copy(target, source)
        once(target)

    def read(self: parkfile.StateFile, at_bytes: int, view: memoryview) -> None:
        plain_read(self, at_bytes, view)
        once(view)

    plain_copy, plain_read = hostcrossing.copy_bytes, parkfile.StateFile.read
    monkeypatch.setattr(hostcrossing, "copy_bytes", copy)
    monkeypatch.setattr(parkfile.StateFile, "read", read)
    with pytest.raises(IntegrityError) as caught:
        await bench.unpark()
    assert caught.value.leaf
    assert set(bench.roles()) == {SlotRole.FREE}
    back = await bench.unpark()
    assert bench.bytes_of(back.slot) == data


def slot_address(view: memoryview) -> int:
    import numpy as np

    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


# --- no room -----------------------------------------------------------------------------------


async def test_a_full_budget_is_typed_and_the_slot_stays(bench: Bench) -> None:
    limit = bench.node.runtime.parking.book._limits
    kind = next(kind for kind in limit if kind.name == bench.kind)
    limit[kind] = bench.layout.extent_bytes + 8192  # type: ignore[index]
    slot = await bench.live()
    await bench.park(slot)
    with pytest.raises(CapacityExhausted) as caught:
        await bench.park(slot, park_id="park-2")
    assert caught.value.reason == "PARK_FULL"
    assert bench.node.role(slot) is SlotRole.LIVE
    assert await bench.drop()
    await bench.park(slot, park_id="park-2")


async def test_a_full_disk_is_typed_and_leaves_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bench.kind != "FILE":
        pytest.skip("memory has no disk")

    def full(descriptor: int, data: Any, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    slot = await bench.live()
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(CapacityExhausted) as caught:
        await bench.park(slot)
    assert caught.value.reason == "PARK_DISK_FULL"
    assert await bench.listed() == []
    assert list((bench.directory / "a").iterdir()) == []
    monkeypatch.undo()
    await bench.park(slot)


async def test_no_free_slot_keeps_the_copy(bench: Bench) -> None:
    data = await bench.parked()
    taken = [await bench.cluster.live_slot(bench.layout, f"other-{i}") for i in range(2)]
    with pytest.raises(CapacityExhausted) as caught:
        await bench.unpark()
    assert caught.value.reason == "NO_FREE_SLOT"
    await bench.cluster.release("a", taken[0], "other-0")
    assert bench.bytes_of((await bench.unpark()).slot) == data


async def test_a_node_without_a_directory_says_so(
    build: Callable[..., Any], tmp_path: Path
) -> None:
    bench = Bench(await build(MemoryTransport(), MemoryTransport()), "FILE", tmp_path)
    slot = await bench.live()
    with pytest.raises(Conflict) as caught:
        await bench.park(slot)
    assert caught.value.reason == "PARK_DIR_UNSET"


# --- given up in the middle --------------------------------------------------------------------


@pytest.fixture
def gate(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """(reached, open): crossings stop at their first chunk until it is opened."""
    reached, opened = threading.Event(), threading.Event()
    for crossing in (
        hostcrossing.HostCrossing,
        filecrossing.FileWriting,
        filecrossing.FileReading,
    ):
        plain = crossing._carry

        def held(self: Any, *args: Any, plain: Any = plain) -> None:
            reached.set()
            assert opened.wait(60)
            plain(self, *args)

        monkeypatch.setattr(crossing, "_carry", held)
    return reached, opened


Gate = tuple[threading.Event, threading.Event]


async def test_a_caller_that_goes_away_leaves_nothing(bench: Bench, gate: Gate) -> None:
    slot = await bench.live()
    parking = asyncio.ensure_future(bench.park(slot))
    await until(gate[0].is_set)
    parking.cancel()
    await asyncio.gather(parking, return_exceptions=True)
    assert bench.node.runtime.slots.states()[0].pins == 1, "a thread may still read it"
    gate[1].set()
    await until(lambda: not bench.node.runtime.parking._making)
    await until(lambda: bench.node.runtime.slots.states()[0].pins == 0)
    assert await bench.listed() == []
    assert bench.node.role(slot) is SlotRole.LIVE
    await bench.park(slot)


async def test_a_drop_ends_a_copy_that_is_being_made(bench: Bench, gate: Gate) -> None:
    slot = await bench.live()
    parking = asyncio.ensure_future(bench.park(slot))
    await until(gate[0].is_set)
    dropping = asyncio.ensure_future(bench.drop())
    (making,) = bench.node.runtime.parking._making.values()
    await until(lambda: bool(making.cancelling()))
    gate[1].set()
    assert await dropping
    with pytest.raises(Conflict) as caught:
        await parking
    assert caught.value.reason == "PARK_DROPPED"
    assert await bench.listed() == []
    await bench.park(slot)


async def test_a_copy_dropped_while_its_digests_are_composed_holds_no_memory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything has crossed, and nothing is on record yet."""
    begun, goes_on, plain = threading.Event(), threading.Event(), parking_module.compose

    def compose(*arguments: Any) -> Any:
        begun.set()
        assert goes_on.wait(60)
        return plain(*arguments)

    monkeypatch.setattr(parking_module, "compose", compose)
    slot = await bench.live()
    parking = asyncio.ensure_future(bench.park(slot))
    await until(begun.is_set)
    dropping = asyncio.ensure_future(bench.drop())
    (making,) = bench.node.runtime.parking._making.values()
    await until(lambda: bool(making.cancelling()))
    goes_on.set()
    assert await dropping
    with pytest.raises(Conflict) as caught:
        await parking
    assert caught.value.reason == "PARK_DROPPED"
    assert bench.node.runtime.parking._buffers == {}
    for number in range(2):  # there is room for two copies
        await bench.park(slot, park_id=f"park-{number}")


async def test_a_copy_dropped_while_it_comes_back_goes_afterwards(bench: Bench, gate: Gate) -> None:
    gate[1].set()
    data = await bench.parked()
    gate[0].clear()
    gate[1].clear()
    coming = asyncio.ensure_future(bench.unpark())
    await until(gate[0].is_set)
    assert await bench.drop()
    gate[1].set()
    assert bench.bytes_of((await coming).slot) == data
    await until(lambda: not len(bench.node.runtime.parking.book))


async def test_a_slot_released_under_a_crossing_is_quarantined_until_its_end(
    bench: Bench, gate: Gate
) -> None:
    slot = await bench.live()
    parking = asyncio.ensure_future(bench.park(slot))
    await until(gate[0].is_set)
    assert await bench.cluster.release("a", slot)
    assert bench.node.role(slot) is SlotRole.QUARANTINED
    gate[1].set()
    await parking
    assert bench.node.role(slot) is SlotRole.FREE


# --- restarts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_file_outlives_its_mover_and_memory_does_not(tmp_path: Path, kind: str) -> None:
    async with AsyncExitStack() as outer:
        admission, address = await start_admission(outer)

        async def mover(stack: AsyncExitStack) -> Bench:
            node = await start_node(
                stack, "a", tmp_path, address, MemoryTransport(), park_dir=tmp_path / "parked"
            )
            return Bench(Cluster(admission, {"a": node}), kind, tmp_path / "parked")

        async with AsyncExitStack() as stack:
            data = await (await mover(stack)).parked()
        async with AsyncExitStack() as stack:
            bench = await mover(stack)
            if kind == "MEMORY":
                with pytest.raises(NotFound):
                    await bench.unpark()
                return
            back = await bench.unpark()
            assert bench.bytes_of(back.slot) == data
            bench.flip(5)
        async with AsyncExitStack() as stack:
            bench = await mover(stack)
            with pytest.raises(IntegrityError) as caught:
                await bench.unpark()
            assert caught.value.leaf == "leaf0"
            with (bench.directory / "a/park-1/state").open("r+b") as file:
                file.truncate(4096)
        async with AsyncExitStack() as stack:
            bench = await mover(stack)
            (listed,) = await bench.listed()
            assert listed.refused == "PARKED_FILE_TRUNCATED"
            with pytest.raises(IntegrityError) as caught:
                await bench.unpark()
            assert caught.value.reason == "PARKED_FILE_TRUNCATED"
            assert await bench.node.runtime.parking.drop_orphan("park-1")
            assert await bench.listed() == []
            assert list((bench.directory / "a").iterdir()) == []


async def test_twenty_times_hold_no_more_than_one(bench: Bench) -> None:
    bench.layout = layout_of((2 * MEBIBYTE + 5,))

    async def once() -> None:
        await bench.parked()
        back = await bench.unpark()
        assert await bench.drop()
        assert await bench.cluster.release("a", back.slot)

    await once()
    before = bench.node.runtime.census()
    for _ in range(20):
        await once()
    after = bench.node.runtime.census()
    for name in ("descriptors", "threads", "parked", "park_bytes", "tasks"):
        assert after[name] <= before[name] + 2, name
    assert after["resident_bytes"] <= before["resident_bytes"] + 8 * MEBIBYTE
