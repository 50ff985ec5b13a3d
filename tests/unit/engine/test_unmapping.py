"""Unmapping a slot: beside the event loop, once, and before anybody may give the slot away."""

from __future__ import annotations

import asyncio
import mmap
import os
import threading
from typing import Any

import pytest

from services.engine import engine as engine_module
from services.engine import hostslot
from services.engine.fork_order import Branch, ForkOrder
from services.engine.hostslot import HostSlot
from services.engine.parts import HOST_PART_BYTES
from services.engine.unmapping import Unmapping
from tests.unit.engine.support import DEADLINE_S, Harness, contract_of, script
from worldline.errors import CapacityExhausted, Conflict, DeadlineExceeded, InvariantBroken
from worldline.v1 import engine_pb2


class Gate:
    """Slots that are being unmapped wait here; which came, and in whose thread."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.came = threading.Semaphore(0)
        self.closed: list[tuple[HostSlot, threading.Thread]] = []

    async def reached(self, count: int = 1) -> None:
        """Until so many slots are being unmapped."""
        for _ in range(count):
            assert await asyncio.to_thread(self.came.acquire, timeout=DEADLINE_S)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch):
    made, let_go = Gate(), HostSlot._let_go

    def held(slot: HostSlot) -> bool:
        made.closed.append((slot, threading.current_thread()))
        made.came.release()
        assert made.may_go.wait(DEADLINE_S)
        return let_go(slot)

    monkeypatch.setattr(HostSlot, "_let_go", held)
    yield made
    made.may_go.set()


async def slots_mapped(harness: Harness) -> int:
    answer = await harness.ask("DescribeEngine", engine_pb2.DescribeEngineRequest())
    return answer.census.counts["slots_mapped"]


async def turns(count: int = 100) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_others_play_and_renew_while_a_slot_is_unmapped(source: Harness, gate: Gate) -> None:
    await source.open("s1")
    await source.open("s2")
    closing = asyncio.create_task(source.engine.close("s1", 1))
    await gate.reached()
    async with source.join(0, "s2") as player:
        await player.joined()
        await player.act(script(0))
        assert (await player.block()).block_index == 0
    source.directory.owned = {"s2": 1}
    await source.upkeep._renew()
    # Nobody is told that it may be given away, and it is not forgotten either.
    assert not closing.done()
    assert await slots_mapped(source) == 2
    source.engine.bury_ended()
    with pytest.raises(Conflict):
        await source.engine.arriving.open("s1", 1, contract_of(), None)  # type: ignore[arg-type]
    gate.may_go.set()
    async with asyncio.timeout(DEADLINE_S):
        await closing
    assert await slots_mapped(source) == 1
    assert [thread is threading.main_thread() for _, thread in gate.closed] == [False]


async def test_whoever_asks_again_waits_for_the_same_end(source: Harness, gate: Gate) -> None:
    await source.open()
    closing = [asyncio.create_task(source.engine.close("s1", 1)) for _ in range(2)]
    await gate.reached()
    closing.append(asyncio.create_task(source.engine.close("s1", 1)))
    await turns()
    assert not any(one.done() for one in closing)
    gate.may_go.set()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*closing)
    assert len(gate.closed) == 1
    assert source.engine.sessions == {}


async def test_a_slot_with_a_view_stays_and_is_said_to(source: Harness) -> None:
    await source.open()
    session = source.engine.session("s1")
    view = session.open_memory().state["kv_cache"][0]["k"]
    with pytest.raises(InvariantBroken):
        await source.engine.close("s1", 1)
    source.engine.bury_ended()
    assert source.engine.session("s1") is session
    assert await slots_mapped(source) == 1
    view.fill_(1)  # and harms nobody: it is mapped


@pytest.mark.parametrize("fails", ["open", "fork"])
async def test_what_is_undone_is_given_back_once_it_is_unmapped(
    source: Harness, gate: Gate, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    await source.open()
    source.slots.free = source.slots.free[:1]
    if fails == "open":

        async def no_room(*_: Any, **__: Any) -> None:
            raise CapacityExhausted("no tensors")

        monkeypatch.setattr(source.chores, "run", no_room)
        undone = asyncio.create_task(source.open("s2"))
    else:
        order = ForkOrder(
            session_id="s1",
            epoch=1,
            contract=contract_of(),
            branches=(Branch("b0", 1, 0), Branch("b1", 1, 1)),
        )
        undone = asyncio.create_task(source.engine.fork(order))
    await gate.reached()
    await turns()
    assert source.slots.released == []
    assert not undone.done()
    gate.may_go.set()
    with pytest.raises(CapacityExhausted):
        await undone
    assert len(source.slots.released) == 1


async def test_who_leaves_is_gone_when_the_slot_is(gate: Gate) -> None:
    """A cancelled caller goes on to give the slot away."""
    descriptor = os.memfd_create("wl-test-slot")
    os.ftruncate(descriptor, HOST_PART_BYTES)
    waiting = asyncio.create_task(Unmapping(HostSlot(descriptor, HOST_PART_BYTES)).wait())
    await gate.reached()
    waiting.cancel()
    await turns()
    assert not waiting.done()
    gate.may_go.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    os.close(descriptor)


async def test_an_engine_that_ends_waits_so_long_and_no_longer(
    source: Harness, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    await source.open()
    session = source.engine.session("s1")
    monkeypatch.setattr(engine_module, "UNMAP_TIMEOUT_S", 0.01)
    async with asyncio.timeout(DEADLINE_S):
        await source.engine.shut_down()
    assert session.is_mapped
    with pytest.raises(DeadlineExceeded):
        await session.unmapped(0.01)
    gate.may_go.set()
    await session.unmapped(DEADLINE_S)
    assert not session.is_mapped


class Recording(mmap.mmap):
    """What is given back, and whether anything was when it was closed."""

    given: list[tuple[int, int]]
    refuses = False

    def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
        assert option == mmap.MADV_DONTNEED
        if self.refuses:
            raise OSError("not these pages")
        self.given = [*getattr(self, "given", []), (start, length)]
        super().madvise(option, start, length)


@pytest.mark.parametrize("refuses", [False, True])
def test_pages_go_part_by_part_and_the_bytes_stay(
    monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    monkeypatch.setattr(hostslot.mmap, "mmap", Recording)
    monkeypatch.setattr(Recording, "refuses", refuses)
    size_bytes = 2 * HOST_PART_BYTES + 4096
    descriptor = os.memfd_create("wl-test-slot")
    os.ftruncate(descriptor, size_bytes)
    slot = HostSlot(descriptor, size_bytes)
    slot.buffer().fill_(7)
    mapping = slot._mapping
    slot.close()
    slot.close()
    assert mapping.closed
    whole = [(0, HOST_PART_BYTES), (HOST_PART_BYTES, HOST_PART_BYTES), (2 * HOST_PART_BYTES, 4096)]
    assert getattr(mapping, "given", []) == ([] if refuses else whole)
    assert os.pread(descriptor, size_bytes, 0) == bytes([7]) * size_bytes
    os.close(descriptor)
