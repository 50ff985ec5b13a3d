"""Verifying beside the push: the answer waits for the landing, and for nothing that never lands."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from services.mover.slots import SlotRole
from tests.unit.mover.cluster import Cluster, layout_of
from worldline.errors import Conflict, InvalidInput, NotFound


async def asked(cluster: Cluster, here: str, manifest: Any) -> asyncio.Task[Any]:
    """A verification that waits at the target."""
    asking = asyncio.ensure_future(cluster.verify(here, manifest, None, promote=True, landing=True))
    async with asyncio.timeout(60):
        while not len(cluster.nodes["b"].runtime.landing):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    return asking


async def test_it_is_answered_once_everything_has_landed(memory_cluster: Cluster) -> None:
    cluster, layout = memory_cluster, layout_of()
    manifest, slot = cluster.manifest(layout), await cluster.live_slot(layout)
    ticket = cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    asking = await asked(cluster, reserved.reservation_id, manifest)
    outcome, _ = await cluster.push(ticket, manifest, reserved.reservation_id, slot)
    answer = await asking
    assert answer.equal
    assert answer.digests == outcome.digests
    node = cluster.nodes["b"]
    assert node.role(reserved.slot) is SlotRole.LIVE
    assert not len(node.runtime.landing)


async def test_it_reads_what_rests_and_not_what_came(memory_cluster: Cluster) -> None:
    cluster, layout = memory_cluster, layout_of()
    manifest, slot = cluster.manifest(layout), await cluster.live_slot(layout)
    ticket = cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    here = reserved.reservation_id
    await cluster.push(ticket, manifest, here, slot)
    cluster.view("b", reserved.slot)[7] ^= 4
    answer = await cluster.verify(here, manifest, None, promote=True, landing=True)
    assert not answer.equal
    assert (answer.failure.reason, answer.failure.granule) == ("DIGEST_MISMATCH", 0)
    assert cluster.nodes["b"].role(reserved.slot) is SlotRole.SHADOW
    with pytest.raises(InvalidInput) as caught:
        other = replace(manifest, block_index=manifest.block_index + 1)
        await cluster.verify(here, other, None, promote=True, landing=True)
    assert caught.value.reason == "MANIFEST_MISMATCH"


async def test_it_ends_with_the_reservation(memory_cluster: Cluster) -> None:
    cluster, layout = memory_cluster, layout_of()
    manifest = cluster.manifest(layout)
    reserved = await cluster.reserve(cluster.ticket(layout), layout)
    asking = await asked(cluster, reserved.reservation_id, manifest)
    assert await cluster.release("b", reserved.slot)
    with pytest.raises(Conflict) as caught:
        await asking
    assert caught.value.reason == "RESERVATION_ENDED"
    with pytest.raises(NotFound):
        await cluster.verify("no-such-reservation", manifest, None, landing=True)


async def test_what_nobody_digested_is_not_verified(memory_cluster: Cluster) -> None:
    cluster, layout = memory_cluster, layout_of()
    manifest, slot = cluster.manifest(layout), await cluster.live_slot(layout)
    ticket = cluster.ticket(layout)
    reserved = await cluster.reserve(ticket, layout)
    asking = await asked(cluster, reserved.reservation_id, manifest)
    await cluster.push(
        ticket, manifest, reserved.reservation_id, slot, verification="VERIFICATION_OFF"
    )
    with pytest.raises(Conflict) as caught:
        await asking
    assert caught.value.reason == "NOT_PROMOTABLE"
