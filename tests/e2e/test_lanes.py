"""Lanes (fault 32): a move says what carried it, and admission believes what was measured."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import make_stage
from tests.oracles import bounded
from worldline.cli.cluster import LocalCluster
from worldline.cli.parts import ClusterOptions
from worldline.rpc.channel import call, open_channel
from worldline.sdk import Client
from worldline.v1 import admission_pb2, admission_pb2_grpc

pytestmark = pytest.mark.timeout(600)


async def measured_rates(cluster: LocalCluster) -> dict[tuple[str, str], tuple[float, int]]:
    """Bytes a second and samples of every path that admission knows."""
    async with open_channel(cluster.admission_address) as channel:
        stub = admission_pb2_grpc.AdmissionServiceStub(channel)
        request = admission_pb2.DescribeAdmissionRequest()
        paths = (await call(stub.DescribeAdmission, request, timeout_s=60)).paths
    return {
        (path.source_node_id, path.target_node_id): (path.rate_bytes_per_s, path.samples)
        for path in paths
    }


async def test_a_slow_lane_between_neighbours_is_named_and_measured() -> None:
    """Both movers are told to use TCP, as if nothing else worked: right bytes, and no secret."""
    options = ClusterOptions(slots=3, slot_bytes=16 << 20, env={"UCX_TLS": "tcp,self"})
    path = "node-1", "node-2"
    async with LocalCluster(options) as cluster, Client(cluster.placement_address) as client:
        stage = await make_stage(cluster, client)
        before_rate, before_samples = (await measured_rates(cluster))[path]
        async with bounded():
            record = await stage.session.move("node-2")
            record.raise_unless_committed()
        stats = record.push_stats
        assert stats is not None
        assert stats.lanes
        assert all(lane.startswith("tcp/") for lane in stats.lanes)
        assert stats.rate_bytes_per_s > 0
        after_rate, after_samples = (await measured_rates(cluster))[path]
        assert after_samples == before_samples + 1
        # What was measured moves the estimate towards itself, and is all that does.
        low, high = sorted((before_rate, stats.rate_bytes_per_s))
        assert low * 0.99 <= after_rate <= high * 1.01
        await stage.oracles.hold(stage.session, stage.twin, 2, node_id="node-2")
