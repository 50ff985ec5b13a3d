"""What only goes wrong is recorded too: reapers, and the counts that collectors read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from services.admission.policy import Policy
from services.admission.runtime import AdmissionRuntime
from services.mover.runtime import MoverRuntime
from services.mover.slots import Shelf, SlotRole, SlotTable
from tests.unit.admission.builders import probe
from tests.unit.placement.cluster import LEASE_MS, running_cluster
from worldline.telemetry import start
from worldline.ticket import TicketSigner

from .test_metrics import points


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    found = InMemoryMetricReader()
    started = start("test", metric_readers=[found])
    yield found
    started.shutdown()


async def test_a_hold_that_nobody_ends(reader: InMemoryMetricReader) -> None:
    policy = Policy(valid_for_ms=20, lease_min_ms=20, lease_max_ms=20)
    runtime = AdmissionRuntime(policy, TicketSigner.generate())
    assert runtime.admit_move(probe())[0].verdict.admitted
    assert runtime.leases() == {("hold",): 1}
    reaper = asyncio.ensure_future(runtime.reap())
    async with asyncio.timeout(60):
        while runtime.leases() != {("hold",): 0}:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    reaper.cancel()
    await asyncio.gather(reaper, return_exceptions=True)
    assert points(reader, "worldline.reaps")["hold",].value == 1


async def test_sessions_of_an_engine_that_is_silent(
    reader: InMemoryMetricReader, tmp_path: Path
) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.session()
        assert cluster.placement is not None
        runtime = cluster.placement.runtime
        # As a collector's thread does.
        assert (await asyncio.to_thread(runtime.session_counts))[("live",)] == 1
        assert runtime.leases()[("engine",)] == len(runtime.fleet.engines) > 0
        await runtime.reap(asyncio.get_running_loop().time() + LEASE_MS / 1e3 + 1)
        counted = await asyncio.to_thread(runtime.session_counts)
        assert (counted[("live",)], counted[("lost",)]) == (0, 1)
    assert points(reader, "worldline.reaps")["session",].value == 1


def test_slots_are_counted_by_role() -> None:
    slots = SlotTable("node-1", (Shelf("cpu", 3, 1 << 20),), 0.0, 1)
    slots.allocate("session-1", 1 << 20, SlotRole.LIVE, 0.0)
    runtime: Any = SimpleNamespace(slots=slots)
    counts = MoverRuntime.slot_counts(runtime)
    assert counts == {("free",): 2, ("shadow",): 0, ("live",): 1, ("quarantined",): 0}
