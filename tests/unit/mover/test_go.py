"""The go travels over gRPC beside the bytes: a move waits for it neither way, and loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from services.mover.reservation import ReservationState
from tests.unit.mover.cluster import Cluster, layout_of, until
from worldline.rpc.duplex import Duplex
from worldline.v1 import mover_pb2

LAYOUT = layout_of()


async def test_what_is_sealed_lands_before_its_go_arrives(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = cluster.nodes["b"].runtime
    slot, ticket = await cluster.live_slot(LAYOUT), cluster.ticket(LAYOUT)
    reserved = await cluster.reserve(ticket, LAYOUT)
    reservation = target.reservations.get(reserved.reservation_id)
    plain, held = Duplex.write, asyncio.Event()

    async def late(self: Duplex, message: Any) -> None:
        if isinstance(message, mover_pb2.LandRequest) and message.HasField("go"):
            held.set()
            await until(lambda: reservation.state is ReservationState.PROMOTED)
            with contextlib.suppress(TimeoutError):  # a stream that ended now would lose the write
                await until(lambda: self.ended, within_s=0.3)
        await plain(self, message)

    monkeypatch.setattr(Duplex, "write", late)
    manifest = cluster.manifest(LAYOUT)
    outcome, _ = await cluster.push(ticket, manifest, reserved.reservation_id, slot, promote=True)
    assert held.is_set()
    assert outcome.receipt.received_bytes == LAYOUT.extent_bytes
    assert reservation.staged is not None
    assert reservation.staged.block_index == manifest.block_index
    # Both answers came over one stream, which outlived the go.
    assert outcome.receipt.digests.whole == outcome.digests.whole
    await cluster.nodes["b"].until_quiet()
