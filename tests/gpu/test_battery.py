"""The battery on real GPUs: no bit is missed between two devices, directly or through pinned
memory; and two hundred moves hold no more of anything than twenty.

Two mover processes; the strata are those of `tests.flips`. Parked copies: `test_parking`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from services.engine.device import describe_device
from services.mover.staged import STAGED_LANE
from tests.device_tampering import (
    DIRECT_PLACES,
    SIDES,
    SOURCE_AFTER_ITS_DIGEST,
    STAGED_PLACES,
)
from tests.e2e.footprint import Sample, growth, of_process
from tests.e2e.mover_ends import SESSION, Ends
from tests.flips import Flip, flips, world_layout
from tests.gpu.tampering_mover import CHANGE, TAMPER_DIR
from tests.mover_pair import mover_pair, occupied
from tests.oracles import bounded, until
from worldline.cuda.devices import devices
from worldline.errors import Conflict, IntegrityError
from worldline.state.digest import digest_slot
from worldline.v1 import move_pb2

ROOT = Path(__file__).parents[2]
LAYOUT = world_layout()
SLOT_BYTES = 16 << 20
MEBIBYTE = 1 << 20
MOVER = "services.mover.main:main"
TAMPERING_MOVER = "tests.gpu.tampering_mover:main"
needs_two = pytest.mark.skipif(
    len(devices()) < 2, reason=f"needs two GPUs, there are {len(devices())}"
)
#: As between hosts whose network takes host memory only.
HOST_LANES = {"UCX_TLS": "tcp,cuda_copy"}


@dataclass
class Devices(Ends):
    """Movers `a` and `b` on devices; slots are reached as an engine reaches them."""

    directory: Path = Path()

    async def filled(self, name: str) -> move_pb2.SlotRef:
        slot = await self.live(name)
        memory = await self.node(name).slots.map(slot, SESSION)
        host = torch.frombuffer(bytearray(self.data), dtype=torch.uint8)
        memory.buffer()[: len(self.data)].copy_(host)
        memory.settle()
        memory.close()
        return slot

    async def flip(self, name: str, slot: move_pb2.SlotRef, flip: Flip) -> None:
        """Change the bit of the resting slot."""
        memory = await self.node(name).slots.map(slot, SESSION)
        at = slice(flip.offset_bytes, flip.offset_bytes + 1)
        memory.buffer()[at].bitwise_xor_(1 << flip.bit)
        memory.settle()
        memory.close()

    def arm(self, place: str, slot: move_pb2.SlotRef, flip: Flip) -> None:
        order = {
            "node": SIDES[place],
            "place": place,
            "slot_index": slot.slot_index,
            "offset_bytes": flip.offset_bytes,
            "bit": flip.bit,
        }
        # At once or not at all: a mover may look at any time.
        whole = self.directory / "order"
        whole.write_text(json.dumps(order))
        whole.rename(self.directory / CHANGE)

    @property
    def armed(self) -> bool:
        return (self.directory / CHANGE).exists()


@asynccontextmanager
async def between(
    directory: Path, source: str, target: str, *, entry: str, env: Mapping[str, str]
) -> AsyncIterator[Devices]:
    places = {"a": describe_device(source), "b": describe_device(target)}
    own = {TAMPER_DIR: str(directory), "PYTHONPATH": str(ROOT), **env}
    async with (
        bounded(110),
        mover_pair(directory, SLOT_BYTES, places, entry=entry, env=own) as movers,
    ):
        yield Devices(movers, LAYOUT, directory)
        await until(lambda: occupied(movers))


async def check_caught(ends: Devices, place: str, slot: move_pb2.SlotRef, flip: Flip) -> str | None:
    """What is wrong about how a change was caught; None where nothing is."""
    move = await ends.reserve("a", "b")
    ends.arm(place, slot if SIDES[place] == "a" else move.reserved.slot, flip)
    try:
        await ends.push("a", "b", move, slot, chunk_bytes=4 * MEBIBYTE, window_chunks=4)
    except IntegrityError as error:
        found = error.leaf, error.granule
    else:
        await ends.movers.release("b", move.reserved.slot)
        return f"{flip} was missed" + (" and never made" if ends.armed else "")
    with pytest.raises(Conflict):
        await ends.movers.promote(move.reserved.reservation_id, move.reserved.slot)
    await ends.until_free("b", 60.0)
    if place == SOURCE_AFTER_ITS_DIGEST:
        await ends.flip("a", slot, flip)
    return None if found == flip.found else f"{flip} was taken for {found}"


async def check_place(ends: Devices, place: str, seed: int) -> tuple[str, ...]:
    """Every stratum at one place, then a clean move; the lanes of that."""
    slot = await ends.filled("a")
    strata = flips(LAYOUT, seed)
    misses = [await check_caught(ends, place, slot, flip) for flip in strata]
    assert [miss for miss in misses if miss is not None] == []
    move = await ends.reserve("a", "b")
    outcome = await ends.push("a", "b", move, slot, chunk_bytes=0, window_chunks=0)
    assert outcome.digests.whole == digest_slot(LAYOUT, memoryview(ends.data)).whole
    assert outcome.receipt.digests == outcome.digests
    assert await ends.movers.release("b", move.reserved.slot)
    assert await ends.movers.release("a", slot)
    lanes = tuple(outcome.push_stats.lanes)
    sys.stdout.write(f"{place}: {len(strata)} bits, none missed, lanes {list(lanes)}\n")
    return lanes


@needs_two
@pytest.mark.parametrize("place", DIRECT_PLACES)
async def test_no_bit_is_missed_between_gpus(tmp_path: Path, place: str) -> None:
    async with between(tmp_path, "cuda:0", "cuda:1", entry=TAMPERING_MOVER, env={}) as ends:
        lanes = await check_place(ends, place, 100 + DIRECT_PLACES.index(place))
    assert any(lane.startswith("cuda_ipc/") for lane in lanes)
    assert STAGED_LANE not in lanes


@pytest.mark.parametrize("place", STAGED_PLACES)
async def test_no_bit_is_missed_through_pinned_memory(tmp_path: Path, place: str) -> None:
    target = "cuda:1" if len(devices()) > 1 else "cuda:0"
    async with between(tmp_path, "cuda:0", target, entry=TAMPERING_MOVER, env=HOST_LANES) as ends:
        lanes = await check_place(ends, place, 200 + STAGED_PLACES.index(place))
    assert STAGED_LANE in lanes


async def test_no_bit_is_missed_in_the_slot(tmp_path: Path) -> None:
    """After it landed, and after a verify that matched."""
    async with between(tmp_path, "cuda:0", "cuda:0", entry=MOVER, env={}) as ends:
        slot = await ends.filled("a")
        move = await ends.reserve("a", "b")
        outcome = await ends.push("a", "b", move, slot, chunk_bytes=0, window_chunks=0)
        name, manifest = move.reserved.reservation_id, ends.movers.manifest(LAYOUT)
        misses = []
        for flip in flips(LAYOUT, seed=300):
            await ends.flip("b", move.reserved.slot, flip)
            answer = await ends.movers.verify(name, manifest, outcome.digests)
            found = answer.failure.leaf or None, answer.failure.granule
            if answer.equal or found != flip.found:
                misses.append(f"{flip} was taken for {found}")
            with pytest.raises(Conflict):
                await ends.movers.promote(name, move.reserved.slot)
            await ends.flip("b", move.reserved.slot, flip)
            assert (await ends.movers.verify(name, manifest, outcome.digests)).equal
        assert misses == []
        assert await ends.movers.release("b", move.reserved.slot)
        assert await ends.movers.release("a", slot)


@pytest.mark.parametrize("lanes", ["tcp,self", "posix,self"])
async def test_lanes_without_cuda_carry_gpus_through_pinned_memory_and_say_so(
    tmp_path: Path, lanes: str
) -> None:
    """Fault 33 for device memory: UCX cannot touch it, the mover stages, the record names it."""
    async with between(tmp_path, "cuda:0", "cuda:0", entry=MOVER, env={"UCX_TLS": lanes}) as ends:
        slot = await ends.filled("a")
        move = await ends.reserve("a", "b")
        outcome = await ends.push("a", "b", move, slot, chunk_bytes=0, window_chunks=0)
        assert outcome.digests.whole == digest_slot(LAYOUT, memoryview(ends.data)).whole
        found = tuple(outcome.push_stats.lanes)
        assert STAGED_LANE in found
        assert all(lane.startswith(("staged/", lanes.split(",")[0])) for lane in found)
        assert await ends.movers.release("b", move.reserved.slot)
        assert await ends.movers.release("a", slot)


WARM_MOVES, MOVES, SAMPLE_EVERY = 20, 200, 10
#: A hundred-and-fiftieth of a move's bytes, kept at each move, would exceed it.
MEMORY_SLACK_BYTES = 8 * MEBIBYTE


@pytest.mark.parametrize(
    ("source", "target"),
    [pytest.param("cuda:0", "cuda:1", marks=needs_two), ("cuda:0", "cpu"), ("cuda:0", "cuda:0")],
)
async def test_two_hundred_moves_hold_no_more_than_twenty(
    tmp_path: Path, source: str, target: str
) -> None:
    """Host and device memory, descriptors, threads, registrations, endpoints, rings, tasks."""
    samples: dict[str, list[Sample]] = {name: [] for name in ("a", "b", "devices")}
    async with between(tmp_path, source, target, entry=MOVER, env={}) as ends:
        slot, here, there = await ends.filled("a"), "a", "b"
        for number in range(WARM_MOVES + MOVES):
            slot = await ends.hop(here, there, slot, chunk_bytes=0, window_chunks=0)
            here, there = there, here
            if number < WARM_MOVES or number % SAMPLE_EVERY != SAMPLE_EVERY - 1:
                continue
            for name in ("a", "b"):
                await ends.until_free(name, 20.0, occupied=int(name == here))
                census: Any = (await ends.describe(name)).census.counts
                samples[name].append({**census, **of_process(ends.node(name).process.pid)})
            samples["devices"].append(used_on_all())
        assert await ends.between(there, here).release("b", slot)
    for name, found in samples.items():
        assert len(found) == MOVES // SAMPLE_EVERY
        sys.stdout.write(f"{source} {target} {name}: {dict(found[0])} {dict(found[-1])}\n")
        slack_bytes = 0 if name == "devices" else MEMORY_SLACK_BYTES
        assert growth(found, slack_bytes, {"threads": 2, "descriptors": 4}) == []


def used_on_all() -> dict[str, int]:
    """Bytes in use on every GPU, by whomever."""
    found = {}
    for each in devices():
        free_bytes, all_bytes = torch.cuda.mem_get_info(each.index)
        found[f"cuda:{each.index}_used_bytes"] = all_bytes - free_bytes
    return found


def test_the_battery_is_large_enough() -> None:
    count = len(flips(LAYOUT, 0))
    assert count * (len(DIRECT_PLACES) + len(STAGED_PLACES) + 1) >= 200
