"""Wires between real movers: granted in deadline order, refused before any freeze, freed by deaths.

Also the lease that is too short (fault 12) and the opposite moves that each need the other's last
free slot (fault 23).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from services.engine.device import EngineDevice
from tests.e2e.hold import HELD_MOVER, Hold, stopped, until_stopped
from tests.e2e.mover_ends import Ends, Move
from tests.flips import world_layout
from tests.mover_pair import mover_pair
from tests.oracles import bounded
from tests.unit.mover.cluster import MEBIBYTE
from worldline.errors import CapacityExhausted, WorldlineError
from worldline.rpc.push import PushCall
from worldline.v1 import move_pb2

pytestmark = pytest.mark.asyncio(loop_scope="module")

LAYOUT = world_layout()
SLOT_BYTES = 16 * MEBIBYTE
#: Within this an end is noticed, on a machine with much else to do.
NOTICED_S = 60.0
FAR_MS, MIDDLE_MS, NEAR_MS = 240_000.0, 230_000.0, 220_000.0


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def nodes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Ends, Hold]]:
    """Four movers with four slots each; what a test takes it gives back."""
    directory: Path = tmp_path_factory.mktemp("wires")
    hold = Hold(directory)
    devices = {name: EngineDevice() for name in "abcd"}
    async with mover_pair(
        directory, SLOT_BYTES, devices, entry=HELD_MOVER, env=hold.env, slot_count="4"
    ) as movers:
        yield Ends(movers, LAYOUT), hold


@dataclass
class World:
    """A frozen or running world of a test: its slot, its move and its push."""

    ends: Ends
    source: str
    target: str
    session_id: str
    slot: move_pb2.SlotRef
    move: Move
    call: PushCall
    arming: asyncio.Task[None]

    async def armed(self) -> None:
        """Until the wire is its own."""
        async with asyncio.timeout(NOTICED_S):
            await self.arming

    async def finish(self) -> None:
        """Freeze and move; both copies are equal, and both are given back."""
        manifest = self.ends.movers.manifest(LAYOUT, session_id=self.session_id)
        await self.call.go(manifest.block_index, manifest.layout)
        outcome = await self.call.outcome()
        await self.call.close()
        assert outcome.digests == outcome.receipt.digests
        assert await self.ends.bytes_of(self.target, self.session_id) == self.ends.data
        pair = self.ends.between(self.source, self.target)
        assert await pair.release("b", self.move.reserved.slot, self.session_id)
        assert await pair.release("a", self.slot, self.session_id)

    async def refused(self) -> CapacityExhausted:
        """Until its wire is refused; its world has seen nothing of it."""
        async with asyncio.timeout(NOTICED_S):
            with pytest.raises(CapacityExhausted) as caught:
                await self.arming
        await self.call.close()
        assert caught.value.reason == "WIRE_TOO_LATE"
        assert await self.ends.bytes_of(self.source, self.session_id) == self.ends.data
        assert await self.ends.between(self.source, self.target).release(
            "a", self.slot, self.session_id
        )
        return caught.value


async def world(ends: Ends, source: str, target: str, **claims: Any) -> World:
    """One that has asked for its wire."""
    session_id = f"world-{source}"
    slot = await ends.filled(source, session_id)
    move = await ends.reserve(source, target, session_id=session_id, **claims)
    call = ends.push_call(source, target, move, slot)
    return World(
        ends, source, target, session_id, slot, move, call, asyncio.create_task(call.arm())
    )


async def all_free(ends: Ends, names: str = "abcd") -> None:
    for name in names:
        await ends.until_free(name, NOTICED_S)


async def test_three_sources_are_granted_in_deadline_order(nodes: tuple[Ends, Hold]) -> None:
    async with bounded(250):
        ends, _ = nodes
        first = await world(ends, "a", "d", horizon_ms=FAR_MS, wire_ms=10.0)
        await first.armed()
        late = await world(ends, "b", "d", horizon_ms=MIDDLE_MS, wire_ms=10.0)
        await ends.until_wires("d", held="a", waiting="b")
        early = await world(ends, "c", "d", horizon_ms=NEAR_MS, wire_ms=10.0)
        await ends.until_wires("d", held="a", waiting="bc")
        assert not late.arming.done()
        await first.finish()
        await early.armed()
        await ends.until_wires("d", held="c", waiting="b")
        assert not late.arming.done()
        await early.finish()
        await late.armed()
        await ends.until_wires("d", held="b", waiting="")
        await late.finish()
        await all_free(ends)


async def test_interactive_moves_go_before_bulk_ones(nodes: tuple[Ends, Hold]) -> None:
    async with bounded(250):
        ends, _ = nodes
        first = await world(ends, "a", "d", horizon_ms=FAR_MS)
        await first.armed()
        bulk = await world(ends, "b", "d", bulk=True)
        await ends.until_wires("d", held="a", waiting="b")
        interactive = await world(ends, "c", "d", horizon_ms=FAR_MS)
        await ends.until_wires("d", held="a", waiting="bc")
        await first.finish()
        await interactive.armed()
        await ends.until_wires("d", held="c", waiting="b")
        await interactive.finish()
        await bulk.armed()
        await bulk.finish()
        await all_free(ends)


async def test_bulk_that_waits_for_a_busy_target_gives_its_source_to_an_interactive_move(
    nodes: tuple[Ends, Hold],
) -> None:
    async with bounded(250):
        ends, _ = nodes
        first = await world(ends, "b", "d", horizon_ms=FAR_MS)
        await first.armed()
        bulk = await world(ends, "a", "d", horizon_ms=FAR_MS, bulk=True)
        await ends.until_wires("d", held="b", waiting="a")
        slot = await ends.filled("a", "urgent")
        move = await ends.reserve("a", "c", session_id="urgent", horizon_ms=FAR_MS)
        call = ends.push_call("a", "c", move, slot)
        urgent = World(ends, "a", "c", "urgent", slot, move, call, asyncio.create_task(call.arm()))
        assert "gave way" in (await bulk.refused()).message
        await urgent.armed()
        await urgent.finish()
        await first.finish()
        await all_free(ends)


async def test_a_source_sends_one_at_a_time(nodes: tuple[Ends, Hold]) -> None:
    async with bounded(250):
        ends, _ = nodes
        first = await world(ends, "a", "b", horizon_ms=FAR_MS)
        await first.armed()
        slot = await ends.filled("a", "second")
        move = await ends.reserve("a", "c", session_id="second", horizon_ms=FAR_MS)
        call = ends.push_call("a", "c", move, slot)
        second = World(ends, "a", "c", "second", slot, move, call, asyncio.create_task(call.arm()))
        await ends.until_wires("a", held="a", waiting="a")
        assert await ends.wires("c") == {}, "nothing is offered before the egress is its own"
        await first.finish()
        await second.armed()
        await second.finish()
        await all_free(ends)


async def test_who_cannot_make_it_is_refused_at_once_and_leaves_nothing(
    nodes: tuple[Ends, Hold],
) -> None:
    async with bounded(250):
        ends, _ = nodes
        holder = await world(ends, "a", "d", horizon_ms=FAR_MS, wire_ms=60_000.0)
        await holder.armed()
        late = await world(ends, "b", "d", horizon_ms=50_000.0, move_ms=1000.0, wire_ms=1000.0)
        error = await late.refused()
        assert 50_000 < (error.retry_after_ms or 0) <= 60_000
        assert error.field == "ticket.horizon_ms"
        await ends.until_free("b", NOTICED_S)
        await ends.until_wires("d", held="a", waiting="")
        left = (await ends.describe("d")).reservations
        assert list(left) == [holder.move.reserved.reservation_id]
        await holder.finish()
        await all_free(ends)


async def test_who_waits_for_one_that_is_overdue_is_refused_while_it_still_runs(
    nodes: tuple[Ends, Hold],
) -> None:
    """No event brings it: time does."""
    async with bounded(250):
        ends, _ = nodes
        holder = await world(ends, "a", "d", horizon_ms=FAR_MS, wire_ms=50.0)
        await holder.armed()
        late = await world(ends, "b", "d", horizon_ms=3000.0, move_ms=100.0, wire_ms=50.0)
        await late.refused()
        await holder.finish()
        await all_free(ends)


async def test_a_source_that_withdraws_while_it_waits_is_forgotten(
    nodes: tuple[Ends, Hold],
) -> None:
    async with bounded(250):
        ends, _ = nodes
        holder = await world(ends, "a", "d", horizon_ms=FAR_MS)
        await holder.armed()
        gone = await world(ends, "b", "d", horizon_ms=FAR_MS)
        await ends.until_wires("d", held="a", waiting="b")
        await gone.call.close()
        with pytest.raises((WorldlineError, asyncio.CancelledError)):
            await gone.arming
        await ends.until_wires("d", held="a", waiting="")
        await ends.until_free("b", NOTICED_S, occupied=1)
        assert await ends.between("b", "d").release("a", gone.slot, gone.session_id)
        await holder.finish()
        await all_free(ends)


async def test_a_source_that_is_stopped_holds_its_wire_for_its_lease(
    nodes: tuple[Ends, Hold],
) -> None:
    """Granted, and then silent: the next one is served once the lease is over."""
    async with bounded(250):
        ends, _ = nodes
        stuck = await world(ends, "a", "d", horizon_ms=FAR_MS, lease_ms=3000)
        await stuck.armed()
        process = ends.node("a").process
        with stopped(process):
            await until_stopped(process)
            waiting = await world(ends, "b", "d", horizon_ms=FAR_MS)
            await waiting.armed()
            await waiting.finish()
        with pytest.raises(WorldlineError) as caught:
            await stuck.call.outcome()
        assert caught.value.reason == "LEASE_EXPIRED"
        await stuck.call.close()
        await ends.until_free("a", NOTICED_S, occupied=1)
        assert await ends.between("a", "d").release("a", stuck.slot, stuck.session_id)
        await all_free(ends)


async def test_fault_12_a_lease_shorter_than_the_transfer(nodes: tuple[Ends, Hold]) -> None:
    async with bounded(250):
        ends, hold = nodes
        short = await world(ends, "a", "d", horizon_ms=FAR_MS, lease_ms=3000)
        hold.arm("a", 2)
        manifest = ends.movers.manifest(LAYOUT, session_id=short.session_id)
        with pytest.raises(WorldlineError) as caught:
            await short.armed()
            asking = asyncio.ensure_future(world(ends, "b", "d", horizon_ms=FAR_MS))
            await short.call.go(manifest.block_index, manifest.layout)
            await short.call.outcome()
        next_ = await asking
        assert caught.value.reason == "LEASE_EXPIRED"
        await short.call.close()
        hold.release()
        await next_.armed()
        await next_.finish()
        assert await ends.bytes_of("a", short.session_id) == ends.data
        assert await ends.between("a", "d").release("a", short.slot, short.session_id)
        await all_free(ends)


@pytest.mark.parametrize("names", ["ab", "abc"])
async def test_fault_23_opposite_moves_that_need_each_others_last_slot(
    tmp_path: Path, names: str
) -> None:
    """Both end, however their asks meet; so do three in a ring."""
    async with bounded(250):
        devices = {name: EngineDevice() for name in names}
        async with mover_pair(tmp_path, SLOT_BYTES, devices) as movers:
            ends = Ends(movers, LAYOUT)
            for _ in range(4):
                ring = list(zip(names, names[1:] + names[0], strict=True))
                worlds = await asyncio.gather(
                    *(world(ends, *pair, horizon_ms=FAR_MS, wire_ms=10.0) for pair in ring)
                )
                assert all(
                    all(slot.role != move_pb2.SLOT_ROLE_FREE for slot in answer.slots)
                    for answer in [await ends.describe(name) for name in names]
                ), "each side's last slot is taken"
                await asyncio.gather(*(served(each) for each in worlds))
                await all_free(ends, names)


async def served(each: World) -> None:
    await each.armed()
    await each.finish()


@pytest.mark.parametrize("holds", [False, True])
async def test_a_source_that_dies_frees_its_wire(tmp_path: Path, holds: bool) -> None:
    """Waiting or holding; with leases and horizons of more than a minute."""
    devices = {name: EngineDevice() for name in "abd"}
    async with (
        bounded(250),
        mover_pair(tmp_path, SLOT_BYTES, devices, slot_count="4") as movers,
        AsyncExitStack() as stack,
    ):
        ends = Ends(movers, LAYOUT)
        holder = await world(ends, "a", "d", horizon_ms=FAR_MS)
        await holder.armed()
        waiting = await world(ends, "b", "d", horizon_ms=FAR_MS)
        await ends.until_wires("d", held="a", waiting="b")
        dead, left = (holder, waiting) if holds else (waiting, holder)
        stack.push_async_callback(dead.call.close)
        await ends.node(dead.source).process.kill()
        await left.armed()
        await ends.until_wires("d", held=left.source, waiting="")
        if not holds:
            with pytest.raises(WorldlineError):
                await dead.arming
        await left.finish()
        await all_free(ends, f"d{left.source}")
