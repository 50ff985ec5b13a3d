"""Promoting: what becomes the session's, who may say so, and what never does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from services.mover.slots import SlotRole
from services.mover.transport.memory import MemoryTransport
from tests.unit.mover.cluster import Cluster, layout_of
from worldline.errors import (
    Conflict,
    Fenced,
    NotFound,
    WorldlineError,
)


async def test_verification_off_is_never_promoted(memory_cluster: Cluster) -> None:
    cluster, layout = memory_cluster, layout_of()
    manifest = cluster.manifest(layout)
    slot = await cluster.live_slot(layout)
    ticket = cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    await cluster.push(
        ticket, manifest, reserved.reservation_id, slot, verification="VERIFICATION_OFF"
    )
    with pytest.raises(Conflict) as caught:
        await cluster.promote(reserved.reservation_id, reserved.slot)
    assert caught.value.reason == "NOT_PROMOTABLE"


async def test_verify_refuses_absent_and_foreign_digests(memory_cluster: Cluster) -> None:
    """Fault 6: a digest that is absent or of another algorithm is refused, never skipped."""
    cluster, layout = memory_cluster, layout_of()
    manifest = cluster.manifest(layout)
    slot = await cluster.live_slot(layout)
    ticket = cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    outcome, _ = await cluster.push(ticket, manifest, reserved.reservation_id, slot)
    foreign = outcome.digests.__class__.FromString(outcome.digests.SerializeToString())
    foreign.algorithm = "crc32c"
    short = outcome.digests.__class__.FromString(outcome.digests.SerializeToString())
    del short.granules[-1]
    for digests in (None, foreign, short):
        with pytest.raises(WorldlineError) as caught:
            await cluster.verify(reserved.reservation_id, manifest, digests)
        assert caught.value.reason == "INVALID_INPUT"


async def test_a_push_may_promote_what_it_verified(memory_cluster: Cluster) -> None:
    cluster, layout = memory_cluster, layout_of()
    slot = await cluster.live_slot(layout)
    ticket = cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    await cluster.push(
        ticket, cluster.manifest(layout), reserved.reservation_id, slot, promote=True
    )
    assert cluster.nodes["b"].role(reserved.slot) is SlotRole.LIVE
    await cluster.promote(reserved.reservation_id, reserved.slot)  # a repeat changes nothing


async def test_a_verify_may_promote_what_it_found_equal(memory_cluster: Cluster) -> None:
    cluster, layout = memory_cluster, layout_of()
    manifest = cluster.manifest(layout)
    slot = await cluster.live_slot(layout)
    ticket = cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    here = reserved.reservation_id
    outcome, _ = await cluster.push(ticket, manifest, here, slot)
    view, node = cluster.view("b", reserved.slot), cluster.nodes["b"]
    view[7] ^= 4
    assert not (await cluster.verify(here, manifest, outcome.digests, promote=True)).equal
    assert node.role(reserved.slot) is SlotRole.SHADOW
    view[7] ^= 4
    assert (await cluster.verify(here, manifest, outcome.digests)).equal
    assert node.role(reserved.slot) is SlotRole.SHADOW, "nobody asked for it"
    for _ in range(2):  # a lost reply is asked again
        assert (await cluster.verify(here, manifest, outcome.digests, promote=True)).equal
        assert node.role(reserved.slot) is SlotRole.LIVE
    view[7] ^= 4
    assert not (await cluster.verify(here, manifest, outcome.digests, promote=True)).equal
    # Who promoted it and then does not commit gives it back.
    assert await cluster.release("b", reserved.slot)
    await node.until_free(reserved.slot)
    with pytest.raises(Conflict) as caught:
        await cluster.verify(here, manifest, outcome.digests, promote=True)
    assert caught.value.reason == "RESERVATION_ENDED"


async def test_a_push_that_is_not_verified_promotes_nothing(memory_cluster: Cluster) -> None:
    cluster, layout = memory_cluster, layout_of()
    slot = await cluster.live_slot(layout)
    ticket = cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    await cluster.push(
        ticket,
        cluster.manifest(layout),
        reserved.reservation_id,
        slot,
        verification="VERIFICATION_OFF",
        promote=True,
    )
    assert cluster.nodes["b"].role(reserved.slot) is SlotRole.SHADOW


async def test_promote_before_anything_landed_and_of_another_slot(memory_cluster: Cluster) -> None:
    cluster, layout = memory_cluster, layout_of()
    manifest = cluster.manifest(layout)
    slot = await cluster.live_slot(layout)
    ticket = cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    with pytest.raises(Conflict):
        await cluster.promote(reserved.reservation_id, reserved.slot)
    outcome, _ = await cluster.push(ticket, manifest, reserved.reservation_id, slot)
    await cluster.verify(reserved.reservation_id, manifest, outcome.digests)
    stale = reserved.slot.__class__.FromString(reserved.slot.SerializeToString())
    stale.generation += 1
    with pytest.raises(Fenced):
        await cluster.promote(reserved.reservation_id, stale)
    with pytest.raises(NotFound):
        await cluster.promote("no-such-reservation", reserved.slot)


async def test_a_staged_state_is_reaped_but_a_promoted_one_is_not(
    build: Callable[..., Any],
) -> None:
    cluster = await build(MemoryTransport(), MemoryTransport(), staged_hold_s=0.3)
    layout = layout_of()
    manifest = cluster.manifest(layout)
    slot = await cluster.live_slot(layout)
    kept = cluster.ticket(layout)
    reserved = await cluster.reserve(kept, layout)
    outcome, _ = await cluster.push(kept, manifest, reserved.reservation_id, slot)
    await cluster.verify(reserved.reservation_id, manifest, outcome.digests)
    await cluster.promote(reserved.reservation_id, reserved.slot)
    dropped = cluster.ticket(layout)
    other = await cluster.reserve(dropped, layout)
    await cluster.push(dropped, manifest, other.reservation_id, slot)
    await cluster.nodes["b"].until_free(other.slot)
    assert cluster.nodes["b"].role(reserved.slot) is SlotRole.LIVE
