"""What a mover's metrics say of its reservations."""

from __future__ import annotations

from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from worldline.telemetry import start

from .cluster import Cluster, layout_of


async def test_a_reservation_is_a_lease_until_it_is_reaped(memory_cluster: Cluster) -> None:
    reader = InMemoryMetricReader()
    started = start("test", metric_readers=[reader])
    try:
        layout, node = layout_of(), memory_cluster.nodes["b"]
        reserved = await memory_cluster.reserve(memory_cluster.ticket(layout), layout)
        assert node.runtime.leases() == {("reservation",): 1}
        assert node.runtime.slot_counts()[("shadow",)] == 1
        with node.later(600.0):
            await node.until_free(reserved.slot)
        assert node.runtime.leases() == {("reservation",): 0}
        data = reader.get_metrics_data()
        assert data is not None
        (metric,) = [
            each
            for each in data.resource_metrics[0].scope_metrics[0].metrics
            if each.name == "worldline.reaps"
        ]
        (point,) = metric.data.data_points
        assert dict(point.attributes or {}) == {"worldline.reaped": "reservation"}
        assert point.value == 1  # type: ignore[union-attr]
    finally:
        started.shutdown()
