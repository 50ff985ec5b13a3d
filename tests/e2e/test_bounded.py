"""Bounded: after 200 moves nobody holds more than after a few, of anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from services.engine.device import EngineDevice
from tests.e2e.conftest import PATIENT, SEED, make_twin
from tests.e2e.footprint import Sample, growth, of_process
from tests.e2e.mover_ends import Ends
from tests.flips import world_layout
from tests.mover_pair import mover_pair
from tests.oracles import Oracles, bounded, play
from tests.unit.mover.cluster import MEBIBYTE
from worldline.cli.cluster import LocalCluster
from worldline.sdk import Client

LAYOUT = world_layout()
WARM_MOVES = 20
MOVES = 200
SAMPLE_EVERY = 10
#: A move that kept as little as 64 KiB, a hundred-and-fiftieth of its state, would exceed it.
MEMORY_SLACK_BYTES = 8 * MEBIBYTE
#: Between the samples compared lie 130 moves: one kept in twenty would exceed the mappings'.
MOVER_SLACK = {"threads": 2, "descriptors": 4, "mappings": 6}


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(600)
async def test_two_hundred_moves_between_movers_hold_no_more_than_twenty(tmp_path: Path) -> None:
    """There and back, states of 10 MiB: memory, descriptors, registrations, endpoints, tasks."""
    devices = {name: EngineDevice() for name in ("a", "b")}
    samples: dict[str, list[Sample]] = {name: [] for name in devices}
    async with bounded(550), mover_pair(tmp_path, 16 * MEBIBYTE, devices) as movers:
        ends = Ends(movers, LAYOUT)
        slot, here, there = await ends.filled("a"), "a", "b"
        for number in range(WARM_MOVES + MOVES):
            slot = await ends.hop(here, there, slot, chunk_bytes=0, window_chunks=0)
            here, there = there, here
            if number >= WARM_MOVES and number % SAMPLE_EVERY == SAMPLE_EVERY - 1:
                for name, found in samples.items():
                    await ends.until_free(name, 60.0, occupied=int(name == here))
                    census = (await ends.describe(name)).census.counts
                    pid = ends.node(name).process.pid
                    found.append({**census, **of_process(pid)})
        assert await ends.bytes_of(here) == ends.data
        assert await ends.between(there, here).release("b", slot)
    for name, found in samples.items():
        assert len(found) == MOVES // SAMPLE_EVERY
        last = found[-1]
        sys.stdout.write(f"{name}: {dict(last)}\n")
        assert last["endpoints"] == last["requests_outstanding"] == last["landings"] == 0
        assert last["endpoints_parked"] <= 2
        assert last["registrations"] == 2, "one a slot"
        assert growth(found, MEMORY_SLACK_BYTES, MOVER_SLACK) == []


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(600)
async def test_a_world_that_moves_sixty_times_is_held_by_no_more_than_one(
    cluster: LocalCluster, client: Client
) -> None:
    """The whole system: engines map and unmap, placement records, admission learns."""
    twin = await make_twin(client, 6)
    session = await client.open("tiny", seed=SEED, contract=PATIENT, node="node-1")
    await play(session, 0, 2)

    async def there_and_back(count: int) -> None:
        for _ in range(count // 2):
            for target in ("node-2", "node-1"):
                (await session.move(target)).raise_unless_committed()

    samples: dict[str, list[Sample]] = {name: [] for name in cluster.services}
    async with bounded(550):
        await there_and_back(WARM_MOVES)
        oracles = await Oracles.observe(cluster, client)
        for _ in range(6):
            await there_and_back(SAMPLE_EVERY)
            for name, found in samples.items():
                found.append(of_process(cluster.services[name].pid))
    await oracles.hold(session, twin, 2, attempts=60, node_id="node-1")
    slack = {"threads": 4, "descriptors": 8, "mappings": 40}
    grown = {name: growth(found, MEMORY_SLACK_BYTES, slack) for name, found in samples.items()}
    assert {name: found for name, found in grown.items() if found} == {}
    await session.close()


def test_growth_is_seen_and_noise_is_not() -> None:
    steps = range(18)
    flat = [{"descriptors": 40 + step % 2, "rss_bytes": (step * 37 % 5) << 20} for step in steps]
    assert growth(flat, MEMORY_SLACK_BYTES, {}) == []
    for name, grown in (("descriptors", 1), ("rss_bytes", MEBIBYTE)):
        leaking = [
            {**sample, name: sample[name] + step * grown}
            for step, sample in zip(steps, flat, strict=True)
        ]
        (complaint,) = growth(leaking, MEMORY_SLACK_BYTES, {})
        assert complaint.startswith(name)
