"""Hosts' clocks have nothing to do with each other: durations cross, absolute times do not."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e import skewed
from tests.e2e.conftest import ROOT, make_stage
from tests.oracles import bounded
from worldline.cli.cluster import LocalCluster
from worldline.cli.parts import ClusterOptions, NodeOptions
from worldline.sdk import Client


async def test_clocks_that_are_days_apart_change_nothing() -> None:
    """Admission, one mover and the other node's engine each have a clock of their own."""
    reason = await asyncio.to_thread(skewed.why_not)
    if reason is not None:
        pytest.skip(reason)
    env = {"PYTHONPATH": str(ROOT)}
    options = ClusterOptions(
        slots=3,
        slot_bytes=16 << 20,
        env=env,
        admission_entry="tests.e2e.skewed:admission",
        node_options={
            "node-1": NodeOptions(engine_entry="tests.e2e.skewed:engine", env=env),
            "node-2": NodeOptions(mover_entry="tests.e2e.skewed:mover", env=env),
        },
    )
    async with (
        bounded(250),
        LocalCluster(options) as cluster,
        Client(cluster.placement_address) as client,
    ):
        stage = await make_stage(cluster, client)
        for target, next_index in (("node-2", 2), ("node-1", 5)):
            async with bounded():
                record = await stage.session.move(target)
            record.raise_unless_committed()
            await stage.oracles.hold(stage.session, stage.twin, next_index, node_id=target)
        await stage.session.close()
