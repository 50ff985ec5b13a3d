"""Blanks: what is zeros stays behind, is written anew, and is proven by the seal.

Moves are made between every kind of memory, devices over a fake CUDA.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.mover.blanks import (
    RUNS_MAX,
    Blanks,
    blanks_from_proto,
    blanks_to_proto,
    find_blanks,
    late_chunks,
    write_blanks,
)
from services.mover.chunking import ChunkPlan
from services.mover.memory.base import Granules, SlotMemory
from services.mover.memory.host import HostMemory
from services.mover.slots import SlotRole
from tests.unit.mover.blank_ends import BLANK_RUN, GRANULE_COUNT, SIZES, WAYS, Ends, ends
from tests.unit.mover.blank_memory import UNSEEN_BY_DIGESTS
from tests.unit.mover.cluster import MEBIBYTE, layout_of
from worldline.errors import IntegrityError, InvalidInput, TransferFailed
from worldline.rpc.push import PushCall
from worldline.state.digest import Digester
from worldline.state.layout import Layout
from worldline.v1 import move_pb2, mover_pb2


@pytest.fixture(params=WAYS, ids="-".join)
async def cluster(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[Ends]:
    async with ends(request.param, monkeypatch, tmp_path) as found:
        yield found


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


def test_of_too_many_runs_the_longest_are_kept() -> None:
    class Memory(HostMemory):
        def zero_granules(self, extent_bytes: int, among: Granules | None = None) -> Granules:
            found = np.arange(extent_bytes // MEBIBYTE) % 2 == 0
            found[-4:] = True, True, False, True
            return found

    memory = Memory("test", MEBIBYTE)
    found = find_blanks(memory, (2 * RUNS_MAX + 6) * MEBIBYTE).runs
    memory.close()
    assert len(found) == RUNS_MAX
    assert (2 * RUNS_MAX + 2, 2) in found
    assert [count for _, count in found].count(1) == RUNS_MAX - 1


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


async def moved(cluster: Ends, layout: Layout, **changes: object) -> mover_pb2.PushOutcome:
    """A state with a leaf of zeros moves into a slot in which another state has been."""
    ticket, slot, reserved = await cluster.ready(layout)
    outcome, _ = await cluster.push(
        ticket,
        cluster.manifest(layout),
        reserved.reservation_id,
        slot,
        **changes,  # type: ignore[arg-type]
    )
    assert cluster.equal(layout, slot, reserved.slot)
    return outcome


@pytest.mark.parametrize("verification", ["PIPELINED", "SEQUENTIAL", "TAIL"])
async def test_zeros_stay_behind_and_arrive(cluster: Ends, verification: str) -> None:
    layout = layout_of(SIZES)
    outcome = await moved(cluster, layout, verification=f"VERIFICATION_{verification}")
    stats, behind_bytes = outcome.push_stats, BLANK_RUN[1] * MEBIBYTE
    assert stats.blank_bytes == behind_bytes
    assert stats.wire_bytes == layout.extent_bytes - behind_bytes
    assert stats.chunks == GRANULE_COUNT - BLANK_RUN[1]
    assert outcome.receipt.received_bytes == layout.extent_bytes
    assert outcome.digests == outcome.receipt.digests


async def test_without_verification_everything_travels(cluster: Ends) -> None:
    """Nothing would prove that they were zeros when the world stood still."""
    layout = layout_of(SIZES)
    outcome = await moved(cluster, layout, verification="VERIFICATION_OFF")
    assert outcome.push_stats.blank_bytes == 0
    assert outcome.push_stats.wire_bytes == layout.extent_bytes


async def test_a_state_of_zeros_moves_without_a_byte(cluster: Ends) -> None:
    layout = layout_of(SIZES)
    ticket, slot, reserved = await cluster.ready(layout)
    cluster.view("a", slot)[: layout.extent_bytes] = bytes(layout.extent_bytes)
    outcome, _ = await cluster.push(ticket, cluster.manifest(layout), reserved.reservation_id, slot)
    assert outcome.push_stats.wire_bytes == 0
    assert not any(cluster.view("b", reserved.slot)[: layout.extent_bytes])


@asynccontextmanager
async def armed(
    cluster: Ends, layout: Layout, verification: str = "PIPELINED"
) -> AsyncIterator[tuple[PushCall, move_pb2.SlotRef, mover_pb2.ReserveResponse]]:
    """A push that has looked, and has not gone."""
    ticket, slot, reserved = await cluster.ready(layout)
    order = cluster.order(
        ticket,
        cluster.manifest(layout),
        reserved.reservation_id,
        slot,
        verification=f"VERIFICATION_{verification}",
        chunk_bytes=MEBIBYTE,
        window_chunks=2,
    )
    push = PushCall(cluster.nodes["a"].stub, order, 100)
    try:
        await push.arm()
        yield push, slot, reserved
    finally:
        await push.close()


@pytest.mark.parametrize("verification", ["PIPELINED", "SEQUENTIAL"])
async def test_what_is_written_after_the_look_travels_after_all(
    cluster: Ends, verification: str
) -> None:
    layout = layout_of(SIZES)
    manifest = cluster.manifest(layout)
    async with armed(cluster, layout, verification) as (push, slot, reserved):
        for granule in (BLANK_RUN[0], sum(BLANK_RUN) - 1):
            cluster.view("a", slot)[granule * MEBIBYTE + 9] = 1
        await push.go(manifest.block_index, manifest.layout)
        outcome = await push.outcome()
    assert cluster.equal(layout, slot, reserved.slot)
    stats = outcome.push_stats
    assert stats.blank_bytes == (BLANK_RUN[1] - 2) * MEBIBYTE
    assert stats.wire_bytes == layout.extent_bytes - stats.blank_bytes
    assert outcome.digests == outcome.receipt.digests
    verified = await cluster.verify(reserved.reservation_id, manifest, outcome.digests)
    assert verified.equal


@pytest.mark.parametrize("verification", ["PIPELINED", "SEQUENTIAL"])
async def test_bytes_with_the_digest_of_zeros_are_never_taken_for_them(
    cluster: Ends, verification: str
) -> None:
    """Written after the look, no digest tells: the source does. The next look sees them."""
    layout = layout_of(SIZES)
    manifest = cluster.manifest(layout)
    at = (BLANK_RUN[0] + 2) * MEBIBYTE + 1_000
    async with armed(cluster, layout, verification) as (push, slot, reserved):
        cluster.view("a", slot)[at : at + len(UNSEEN_BY_DIGESTS)] = UNSEEN_BY_DIGESTS
        await push.go(manifest.block_index, manifest.layout)
        with pytest.raises(TransferFailed) as caught:
            await push.outcome()
    assert caught.value.reason == "ZEROS_UNPROVEN"
    await cluster.nodes["b"].until_free(reserved.slot)
    await cluster.nodes["a"].until_quiet()
    assert cluster.nodes["a"].role(slot) is SlotRole.LIVE
    ticket = cluster.ticket(layout)
    again = await cluster.reserve(ticket, layout)
    outcome, _ = await cluster.push(ticket, manifest, again.reservation_id, slot)
    assert cluster.equal(layout, slot, again.slot)
    assert outcome.push_stats.blank_bytes == (BLANK_RUN[1] - 1) * MEBIBYTE


async def test_zeros_that_the_target_did_not_write_are_refused(
    cluster: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written_badly(memory: SlotMemory, blanks: Blanks, extent_bytes: int) -> None:
        write_blanks(memory, blanks, extent_bytes)
        memory.write((BLANK_RUN[0] + 1) * MEBIBYTE, memoryview(b"\x01"))

    monkeypatch.setattr("services.mover.landing.write_blanks", written_badly)
    layout = layout_of(SIZES)
    ticket, slot, reserved = await cluster.ready(layout)
    with pytest.raises(IntegrityError) as caught:
        await cluster.push(ticket, cluster.manifest(layout), reserved.reservation_id, slot)
    assert (caught.value.leaf, caught.value.granule) == ("leaf1", BLANK_RUN[0] + 1)
    await cluster.nodes["b"].until_free(reserved.slot)
    await cluster.nodes["a"].until_quiet()
    assert cluster.nodes["a"].role(slot) is SlotRole.LIVE
