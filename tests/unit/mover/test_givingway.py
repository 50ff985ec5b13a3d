"""Who has a slot when probes have some: pure, and in queues over a slot table."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from services.mover.givingway import Answer, Room, answer
from services.mover.slotqueue import SlotQueue
from services.mover.slots import Shelf, SlotRef, SlotRole, SlotTable
from tests.unit.mover.cluster import until
from worldline.errors import CapacityExhausted

GIB = 1 << 30
COUNTS = list(itertools.product(range(3), repeat=4))


def room(free: int, leaving: int, probing: int) -> Room:
    return Room(free, leaving, tuple(SlotRef("n", index, 1) for index in range(probing)))


@pytest.mark.parametrize(("free", "leaving", "probing", "ahead"), COUNTS)
def test_nobody_is_refused_for_a_probe(free: int, leaving: int, probing: int, ahead: int) -> None:
    """Whoever asks has what those before leave, and no probe ends that need not."""
    found = answer(room(free, leaving, probing), ahead)
    left = free + leaving + probing - ahead
    assert (found is Answer.FULL) == (left <= 0)
    assert (found is Answer.TAKE) == (free > ahead)
    assert (found is Answer.END_A_PROBE) == (left > 0 and free + leaving <= ahead)


@pytest.mark.parametrize(("free", "leaving", "probing", "ahead"), COUNTS)
def test_a_probe_has_what_nobody_else_wants(
    free: int, leaving: int, probing: int, ahead: int
) -> None:
    found = answer(room(free, leaving, probing), ahead, probes=True)
    assert found is (Answer.TAKE if free > ahead else Answer.FULL)


class Bench:
    """A table of so many slots, its queue, and which probes have been ended."""

    def __init__(self, count: int, *, within_s: float = 60.0) -> None:
        shelves = (Shelf("cpu", count, GIB), Shelf("cuda:0", 1, GIB, "GPU-a"))
        self.slots = SlotTable("n", shelves, 0.0)
        self.ended: list[SlotRef] = []
        self.queue = SlotQueue(self.slots, self.end, within_s)

    def end(self, probe: SlotRef) -> None:
        self.ended.append(probe)
        self.slots.release(probe, 0.0)

    def probe(self, number: int, device: str = "", *, busy: bool = True) -> SlotRef:
        """One that writes to its slot until it is unpinned, where it is busy."""
        slot = self.queue.take_for_probe(f"probe-{number}", 10, device)
        if busy:
            self.slots.pin(slot)
        return slot

    def live(self, name: str, device: str = "") -> asyncio.Task[SlotRef]:
        return asyncio.create_task(self.queue.take(name, 10, SlotRole.LIVE, device))

    async def until_waiting(self, count: int) -> None:
        await until(lambda: len(self.queue) == count)

    def role(self, slot: SlotRef) -> SlotRole:
        return self.slots.states()[slot.slot_index].role


async def test_the_slot_of_a_probe_is_had_once_nothing_writes_to_it() -> None:
    bench = Bench(1)
    probe = bench.probe(1)
    asked = bench.live("s")
    await bench.until_waiting(1)
    assert bench.ended == [probe]
    assert bench.role(probe) is SlotRole.QUARANTINED
    bench.slots.unpin(probe, 0.0)
    found = await asked
    assert (found.slot_index, found.generation) == (probe.slot_index, probe.generation + 1)
    assert not bench.slots.states()[found.slot_index].gives_way
    assert len(bench.queue) == 0


async def test_a_probe_to_which_nothing_is_written_gives_way_at_once() -> None:
    bench = Bench(1)
    probe = bench.probe(1, busy=False)
    assert (await bench.live("s")).generation == probe.generation + 1


async def test_a_free_slot_is_taken_before_a_probe_ends() -> None:
    bench = Bench(2)
    bench.probe(1)
    await bench.live("s")
    assert bench.ended == []
    with pytest.raises(CapacityExhausted) as caught:
        bench.queue.take_for_probe("probe-2", 10)
    assert caught.value.reason == "NO_FREE_SLOT"


async def test_each_who_waits_has_one_probe_ended_and_the_first_slot_in_turn() -> None:
    bench = Bench(2)
    first, second = bench.probe(1), bench.probe(2)
    asked = []
    for number in range(2):
        asked.append(bench.live(f"s{number}"))
        await bench.until_waiting(number + 1)
    assert bench.ended == [first, second]
    with pytest.raises(CapacityExhausted):  # there is no third
        await bench.live("late")
    bench.slots.unpin(second, 0.0)
    assert (await asked[0]).slot_index == second.slot_index
    assert not asked[1].done()
    bench.slots.unpin(first, 0.0)
    assert (await asked[1]).slot_index == first.slot_index


async def test_nobody_takes_the_slot_that_another_waited_for() -> None:
    bench = Bench(1)
    probe = bench.probe(1)
    asked = bench.live("s")
    await bench.until_waiting(1)
    bench.slots.unpin(probe, 0.0)
    # Free, and not taken yet: the one who waited has not had its turn of the loop.
    assert bench.role(probe) is SlotRole.FREE
    with pytest.raises(CapacityExhausted):
        await bench.queue.take("quick", 10, SlotRole.LIVE)
    with pytest.raises(CapacityExhausted):
        bench.queue.take_for_probe("probe-2", 10)
    await asked
    assert bench.slots.states()[0].session_id == "s"


async def test_who_gives_up_leaves_its_slot_to_the_next() -> None:
    bench = Bench(2)
    probe, other = bench.probe(1), bench.probe(2)
    asked = [bench.live("s0")]
    await bench.until_waiting(1)
    asked.append(bench.live("s1"))
    await bench.until_waiting(2)
    bench.slots.unpin(probe, 0.0)
    asked[0].cancel()  # told already, and not there to take it
    with pytest.raises(asyncio.CancelledError):
        await asked[0]
    assert (await asked[1]).slot_index == probe.slot_index
    bench.slots.unpin(other, 0.0)
    assert bench.slots.free_count() == 2  # the other one, and the GPU's


async def test_a_slot_that_never_is_quiet_is_waited_for_so_long() -> None:
    bench = Bench(1, within_s=0.01)
    probe = bench.probe(1)
    with pytest.raises(CapacityExhausted) as caught:
        await bench.live("s")
    assert caught.value.reason == "NO_FREE_SLOT"
    assert "within 0.01 s" in caught.value.message
    assert bench.role(probe) is SlotRole.QUARANTINED
    assert len(bench.queue) == 0
    bench.slots.unpin(probe, 0.0)
    assert (await bench.live("s")).slot_index == probe.slot_index


@pytest.mark.parametrize("device", ["cuda:0", "GPU-a"])
async def test_a_probe_of_another_device_goes_on(device: str) -> None:
    bench = Bench(1)
    bench.probe(1)
    await bench.live("s", device)
    with pytest.raises(CapacityExhausted):
        await bench.live("t", "cuda:0")
    assert bench.ended == []


async def test_no_probe_ends_for_a_state_that_does_not_fit() -> None:
    bench = Bench(1)
    bench.probe(1)
    with pytest.raises(CapacityExhausted) as caught:
        await bench.queue.take("s", GIB + 1, SlotRole.LIVE)
    assert caught.value.reason == "STATE_TOO_LARGE"
    assert bench.ended == []
