"""Blanks: what is zeros stays behind, is written anew, and is proven by the seal."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.mover.blanks import (
    NO_BLANKS,
    RUNS_MAX,
    Blanks,
    blanks_from_proto,
    blanks_to_proto,
    find_blanks,
    late_chunks,
    write_blanks,
)
from services.mover.chunking import ChunkPlan
from services.mover.memory.host import HostMemory
from services.mover.slots import SlotRole
from tests.unit.mover.cluster import MEBIBYTE, SLOT_BYTES, Cluster, layout_of
from worldline.errors import IntegrityError, InvalidInput
from worldline.rpc.push import PushCall
from worldline.state.digest import Digester
from worldline.state.layout import Layout
from worldline.v1 import mover_pb2

#: Written, zeros over several granules, written; borders fall within granules.
SIZES = (2 * MEBIBYTE + 5, 6 * MEBIBYTE + 123, 2 * MEBIBYTE)
GRANULE_COUNT = 11
#: The granules that lie in the second leaf alone.
BLANK_RUN = (3, 5)


def clear_second(view: memoryview) -> None:
    view[SIZES[0] : SIZES[0] + SIZES[1]] = bytes(SIZES[1])


@st.composite
def runs(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    lengths = draw(st.lists(st.integers(1, 5), max_size=12))
    edges = list(accumulate(lengths, initial=draw(st.integers(0, 3))))
    return tuple((first, end - first) for first, end in zip(edges[::2], edges[1::2], strict=False))


@given(runs(), st.integers(1, 8), st.booleans())
def test_a_chunk_stays_behind_only_where_all_of_it_is_blank(
    found: tuple[tuple[int, int], ...], chunk_granules: int, tapered: bool
) -> None:
    blanks = Blanks(found)
    blank = {each for first, count in found for each in range(first, first + count)}
    plan = ChunkPlan(64 * 4_096 - 17, chunk_granules * 4_096, 4_096, tapered)
    behind = {chunk.index for chunk in blanks.chunks(plan)}
    for chunk in plan:
        granules = set(range(chunk.first_granule, chunk.first_granule + chunk.granule_count))
        assert (chunk.index in behind) == (granules <= blank)
    assert blanks.granule_count == len(blank)


@given(runs())
def test_runs_survive_the_wire(found: tuple[tuple[int, int], ...]) -> None:
    layout = layout_of((80 * MEBIBYTE,))
    blanks = Blanks(found)
    assert blanks_from_proto(blanks_to_proto(blanks), layout) == blanks


@pytest.mark.parametrize(
    "found",
    [
        ((0, 0),),
        ((3, 2), (1, 1)),
        ((0, 2), (1, 1)),
        ((0, 2), (2, 1)),
        ((10, 2),),
        tuple((2 * index, 1) for index in range(RUNS_MAX + 1)),
    ],
)
def test_runs_that_are_none_are_refused(found: tuple[tuple[int, int], ...]) -> None:
    messages = [
        mover_pb2.GranuleRun(first_granule=first, granule_count=count) for first, count in found
    ]
    with pytest.raises(InvalidInput) as caught:
        blanks_from_proto(messages, layout_of())
    assert caught.value.field == "blanks"


def test_one_bit_anywhere_makes_a_granule_written() -> None:
    memory = HostMemory("test", 4 * MEBIBYTE)
    extent_bytes = 3 * MEBIBYTE + 77
    try:
        memory.prepare(extent_bytes, zero=True)
        assert find_blanks(memory, extent_bytes) == Blanks(((0, 4),))
        for at, left in (
            (0, ((1, 3),)),
            (MEBIBYTE + 100_003, ((0, 1), (2, 2))),
            (extent_bytes - 1, ((0, 3),)),
        ):
            memory.part(at, 1)[0] = 64
            assert find_blanks(memory, extent_bytes) == Blanks(left)
            memory.part(at, 1)[0] = 0
        memory.part(extent_bytes, 1)[0] = 1  # beyond the extent nobody looks
        assert find_blanks(memory, extent_bytes) == Blanks(((0, 4),))
        memory.part(0, memory.size_bytes)[:] = b"\x01" * memory.size_bytes
        write_blanks(memory, Blanks(((1, 1), (3, 1))), extent_bytes)
        found = np.frombuffer(memory.part(0, memory.size_bytes), np.uint8)
        zeros = np.flatnonzero(found == 0)
        wanted = [*range(MEBIBYTE, 2 * MEBIBYTE), *range(3 * MEBIBYTE, extent_bytes)]
        assert zeros.tolist() == wanted
        del found
    finally:
        memory.close()


def test_late_is_what_the_digests_say() -> None:
    layout = layout_of()
    data = bytearray(layout.extent_bytes)
    plan = ChunkPlan(layout.extent_bytes, MEBIBYTE, MEBIBYTE)

    def late() -> list[int]:
        digester = Digester(layout)
        digester.update(0, digester.granule_count, memoryview(data))
        return [chunk.index for chunk in late_chunks(layout, plan, digester.segment_crcs())]

    assert late() == []
    data[-1] = 1
    data[4 * MEBIBYTE] = 1
    assert late() == [4, 10]


async def moved(cluster: Cluster, layout: Layout, **changes: object) -> mover_pb2.PushOutcome:
    """A state with a leaf of zeros moves into a slot in which another state has been."""
    slot = await cluster.live_slot(layout)
    clear_second(cluster.view("a", slot))
    ticket = cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    used = cluster.view("b", reserved.slot)
    used[:] = b"\xa5" * used.nbytes
    outcome, _ = await cluster.push(
        ticket,
        cluster.manifest(layout),
        reserved.reservation_id,
        slot,
        **changes,  # type: ignore[arg-type]
    )
    extent = layout.extent_bytes
    assert cluster.view("a", slot)[:extent] == cluster.view("b", reserved.slot)[:extent]
    return outcome


@pytest.mark.parametrize("verification", ["PIPELINED", "SEQUENTIAL", "TAIL"])
async def test_zeros_stay_behind_and_arrive(cluster: Cluster, verification: str) -> None:
    layout = layout_of(SIZES)
    outcome = await moved(cluster, layout, verification=f"VERIFICATION_{verification}")
    stats, behind_bytes = outcome.push_stats, BLANK_RUN[1] * MEBIBYTE
    assert stats.blank_bytes == behind_bytes
    assert stats.wire_bytes == layout.extent_bytes - behind_bytes
    assert stats.chunks == GRANULE_COUNT - BLANK_RUN[1]
    assert outcome.receipt.received_bytes == layout.extent_bytes
    assert outcome.digests == outcome.receipt.digests


async def test_without_verification_everything_travels(cluster: Cluster) -> None:
    """Nothing would prove that they were zeros when the world stood still."""
    layout = layout_of(SIZES)
    outcome = await moved(cluster, layout, verification="VERIFICATION_OFF")
    assert outcome.push_stats.blank_bytes == 0
    assert outcome.push_stats.wire_bytes == layout.extent_bytes


async def test_a_state_of_zeros_moves_without_a_byte(cluster: Cluster) -> None:
    layout = layout_of((3 * MEBIBYTE,))
    slot = await cluster.live_slot(layout)
    cluster.view("a", slot)[: layout.extent_bytes] = bytes(layout.extent_bytes)
    ticket = cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    used = cluster.view("b", reserved.slot)
    used[:] = b"\xa5" * used.nbytes
    outcome, _ = await cluster.push(ticket, cluster.manifest(layout), reserved.reservation_id, slot)
    assert outcome.push_stats.wire_bytes == 0
    assert not any(cluster.view("b", reserved.slot)[: layout.extent_bytes])


@pytest.mark.parametrize("verification", ["PIPELINED", "SEQUENTIAL"])
async def test_what_is_written_after_the_look_travels_after_all(
    cluster: Cluster, verification: str
) -> None:
    layout = layout_of(SIZES)
    manifest = cluster.manifest(layout)
    slot = await cluster.live_slot(layout)
    clear_second(cluster.view("a", slot))
    ticket = cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    order = cluster.order(
        ticket,
        manifest,
        reserved.reservation_id,
        slot,
        verification=f"VERIFICATION_{verification}",
        chunk_bytes=MEBIBYTE,
        window_chunks=2,
    )
    push = PushCall(cluster.nodes["a"].stub, order, 100)
    try:
        await push.arm()
        for granule in (BLANK_RUN[0], sum(BLANK_RUN) - 1):
            cluster.view("a", slot)[granule * MEBIBYTE + 9] = 1
        await push.go(manifest.block_index, manifest.layout)
        outcome = await push.outcome()
    finally:
        await push.close()
    extent = layout.extent_bytes
    assert cluster.view("a", slot)[:extent] == cluster.view("b", reserved.slot)[:extent]
    stats = outcome.push_stats
    assert stats.blank_bytes == (BLANK_RUN[1] - 2) * MEBIBYTE
    assert stats.wire_bytes == extent - stats.blank_bytes
    assert outcome.digests == outcome.receipt.digests
    verified = await cluster.verify(reserved.reservation_id, manifest, outcome.digests)
    assert verified.equal


async def test_zeros_that_the_target_did_not_write_are_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written_badly(memory: HostMemory, blanks: Blanks, extent_bytes: int) -> None:
        write_blanks(memory, blanks, extent_bytes)
        memory.part((BLANK_RUN[0] + 1) * MEBIBYTE, 1)[0] = 1

    monkeypatch.setattr("services.mover.landing.write_blanks", written_badly)
    layout = layout_of(SIZES)
    slot = await cluster.live_slot(layout)
    clear_second(cluster.view("a", slot))
    ticket = cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    with pytest.raises(IntegrityError) as caught:
        await cluster.push(ticket, cluster.manifest(layout), reserved.reservation_id, slot)
    assert (caught.value.leaf, caught.value.granule) == ("leaf1", BLANK_RUN[0] + 1)
    await cluster.nodes["b"].until_free(reserved.slot)
    await cluster.nodes["a"].until_quiet()
    assert cluster.nodes["a"].role(slot) is SlotRole.LIVE


def test_runs_end_where_something_is_written() -> None:
    memory = HostMemory("test", SLOT_BYTES)
    try:
        memory.prepare(SLOT_BYTES, zero=True)
        for granule in (1, 4):
            memory.part(granule * MEBIBYTE, 1)[0] = 1
        found = find_blanks(memory, SLOT_BYTES)
        assert found.runs == ((0, 1), (2, 2), (5, SLOT_BYTES // MEBIBYTE - 5))
        assert find_blanks(memory, MEBIBYTE).runs == ((0, 1),)
        assert not NO_BLANKS.runs
    finally:
        memory.close()
