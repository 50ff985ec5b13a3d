"""Renewals: what an engine tells the directory of its worlds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from services.engine.core import Phase, World
from services.engine.pace import pace_of
from services.engine.peers import Directory
from tests.unit.engine.support import contract_of
from worldline.rpc.channel import ChannelPool
from worldline.rpc.server import GrpcServer
from worldline.v1 import placement_pb2
from worldline.v1.placement_pb2_grpc import (
    PlacementServiceServicer,
    add_PlacementServiceServicer_to_server,
)


class Listener(PlacementServiceServicer):
    """Hears renewals."""

    def __init__(self) -> None:
        self.heard: list[placement_pb2.RenewEngineRequest] = []

    async def RenewEngine(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.heard.append(request)
        return placement_pb2.RenewEngineResponse(lease_ms=1)


async def test_a_renewal_says_how_the_blocks_of_each_world_were_served() -> None:
    pace = pace_of(contract_of(period_ms=100.0))
    pace = replace(pace, blocks_here=9, degraded_blocks=4, releases_skipped=2, missed_periods=1)
    world = World("s", epoch=3, phase=Phase.RUNNING, pace=pace, block_index=40)
    server, channels, listener = GrpcServer(), ChannelPool(), Listener()
    address = server.bind("127.0.0.1:0")
    add_PlacementServiceServicer_to_server(listener, server.server)
    await server.start()
    await Directory(channels, address, 60.0).renew("e1", "i1", (), (), (world,), 60.0)
    await channels.close()
    await server.stop(0)
    (said,) = listener.heard[0].running
    assert (said.session_id, said.epoch, said.block_index) == ("s", 3, 40)
    assert said.block_counts == placement_pb2.BlockCounts(
        blocks=9, degraded_blocks=4, releases_skipped=2, missed_periods=1
    )
