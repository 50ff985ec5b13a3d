"""Admission among real movers: moves that meet at a node wait, are withdrawn, or go elsewhere."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e.conftest import SEED
from tests.e2e.hold import HELD_MOVER, Hold
from tests.oracles import bounded, play, signature, until
from worldline.cli.cluster import LocalCluster
from worldline.cli.parts import ClusterOptions, NodeOptions
from worldline.contract import Contract, ServiceClass
from worldline.errors import Conflict
from worldline.rpc.channel import call, open_channel
from worldline.sdk import Client, MovePhase, MoveRecord
from worldline.sdk.block import Block
from worldline.sdk.move_record import Progress
from worldline.sdk.session import Session
from worldline.v1 import admission_pb2, admission_pb2_grpc, mover_pb2, mover_pb2_grpc
from worldline.verdict import RejectReason

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

#: Of a wire that is held while other processes start, on a machine with much else to do.
LEASE_MS = 200_000
#: As long as anybody waits here.
PATIENT = Contract(service_class=ServiceClass.C1_INTERACTIVE, horizon_ms=200_000)
#: Longer than a move takes on two busy cores, shorter than a lease: a wire that is held for half of
#: it is waited for in vain.
IMPATIENT = Contract(service_class=ServiceClass.C1_INTERACTIVE, horizon_ms=4_000)
SOURCES, RECEIVERS = ("node-1", "node-2"), ("node-3", "node-4")
BLOCKS = 16


@dataclass
class Stage:
    """Four nodes whose paths from the first two to the last two are measured, and warm engines.

    The first node's mover holds a send when it is told to, and with it the wires that it uses.
    """

    cluster: LocalCluster
    client: Client
    hold: Hold
    twin: list[Block]

    async def world(self, node: str, contract: Contract = PATIENT) -> World:
        """A world of two blocks."""
        session = await self.client.open("tiny", seed=SEED, contract=contract, node=node)
        world = World(self, session)
        await world.plays(2)
        return world

    async def warms(self, *paths: tuple[str, str]) -> None:
        """Move a world over each path twice, so that estimates forget what the last test held."""
        async with await self.client.open("tiny", contract=PATIENT, node="node-1") as session:
            for source, target in paths * 2:
                if (await session.refresh()).node_id != source:
                    (await session.move(source)).raise_unless_committed()
                (await session.move(target)).raise_unless_committed()

    async def holds(self, world: World, target: str) -> asyncio.Task[MoveRecord]:
        """Begin to move a world of the first node; it stops in mid-wire."""
        self.hold.arm("node-1", 1)
        moving = world.moves(target)
        await self.hold.held()
        return moving

    async def wires(self, node: str) -> list[mover_pb2.DescribeMoverResponse.Wire]:
        """Who holds a wire of the node, or waits for one."""
        async with open_channel(self.cluster.nodes[node].mover.address) as channel:
            stub = mover_pb2_grpc.MoverServiceStub(channel)
            answer = await call(stub.DescribeMover, mover_pb2.DescribeMoverRequest(), timeout_s=60)
        return list(answer.wires)

    async def admission(self) -> admission_pb2.DescribeAdmissionResponse:
        """What admission holds and knows."""
        async with open_channel(self.cluster.admission_address) as channel:
            answer: admission_pb2.DescribeAdmissionResponse = await call(
                admission_pb2_grpc.AdmissionServiceStub(channel).DescribeAdmission,
                admission_pb2.DescribeAdmissionRequest(),
                timeout_s=60,
            )
        return answer

    async def nothing_is_left(self) -> None:
        """No hold at admission, no wire at any mover."""

        async def complaints() -> list[str]:
            holds = (await self.admission()).holds
            found = [f"{one.move_id} holds into {one.target_node_id}" for one in holds]
            for node in self.cluster.nodes:
                found += [f"{one.move_id} has a wire of {node}" for one in await self.wires(node)]
            return found

        await until(complaints)


@dataclass
class World:
    """One session, how far it was played, and what its moves went through."""

    stage: Stage
    session: Session
    played: int = 0
    phases: list[MovePhase] = field(default_factory=list)

    async def plays(self, count: int, epoch: int = 1) -> None:
        """It generates its next blocks, those of the world that never moved."""
        blocks = await play(self.session, self.played, count)
        self.played += count
        for block in blocks:
            assert signature(block) == signature(self.stage.twin[block.index])
            assert block.epoch == epoch

    def moves(self, target: str) -> asyncio.Task[MoveRecord]:
        """Begin to move it."""
        self.phases = []
        return asyncio.ensure_future(self.session.move(target, self._saw))

    def _saw(self, progress: Progress) -> None:
        if progress.phase not in self.phases:
            self.phases.append(progress.phase)

    async def waits(self) -> None:
        """Until its move waits for a wire, at either end."""
        session_id = self.session.session_id
        own = self.session.info.node_id

        async def complaints() -> list[str]:
            moves = await self.stage.client.moves(session_id, limit=1)
            waiting = [
                wire.move_id
                for node in (own, *RECEIVERS)
                for wire in await self.stage.wires(node)
                if not wire.held
            ]
            if moves and moves[0].move_id in waiting:
                return []
            return [f"{[one.phase for one in moves]} does not wait"]

        await until(complaints)
        assert (await self.stage.client.moves(session_id, limit=1))[0].phase is MovePhase.ADMITTED

    async def is_at(self, node: str, epoch: int) -> None:
        """It plays on there."""
        assert (await self.session.refresh()).node_id == node
        await self.plays(2, epoch)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    hold = Hold(tmp_path_factory.mktemp("hold"))
    options = ClusterOptions(
        nodes=4,
        slots=3,
        slot_bytes=16 << 20,
        admission_variables={"lease_min_ms": str(LEASE_MS)},
        node_options={"node-1": NodeOptions(mover_entry=HELD_MOVER, env=hold.env)},
    )
    async with (
        bounded(250),
        LocalCluster(options) as cluster,
        Client(cluster.placement_address) as client,
    ):
        async with await client.open("tiny", seed=SEED, contract=PATIENT, node="node-1") as session:
            twin = await play(session, 0, BLOCKS)
        stage = Stage(cluster, client, hold, twin)
        await stage.warms(*[(source, target) for target in RECEIVERS for source in SOURCES])
        yield stage


@asynccontextmanager
async def worlds(*opened: World) -> AsyncIterator[None]:
    """Closes them at the end, also where the wire is still held."""
    try:
        yield
    finally:
        opened[0].stage.hold.release()
        await asyncio.gather(*(one.session.close() for one in opened))
        await opened[0].stage.nothing_is_left()


async def pushed(stage: Stage, records: list[MoveRecord]) -> list[tuple[int, int]]:
    """When each record's bytes were pushed, in order of their begin: (ns, ns) by the clock of this
    machine, which all spans were made on."""
    (store,) = stage.cluster.path.rglob("*.traces")
    found: list[tuple[int, int]] = []

    async def complaints() -> list[str]:
        found[:] = await asyncio.to_thread(_pushes, store, [one.trace_id for one in records])
        return [] if len(found) == len(records) else [f"{len(found)} pushes are traced"]

    await until(complaints)
    return sorted(found)


def _pushes(store: Path, trace_ids: list[str]) -> list[tuple[int, int]]:
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
        return [
            (start_ns, start_ns + duration_ns)
            for trace_id in trace_ids
            for start_ns, duration_ns in db.execute(
                "SELECT start_ns, duration_ns FROM spans WHERE trace_id = ? AND name = 'push'"
                " AND service = 'placement'",
                (trace_id,),
            )
        ]


async def never_at_once(stage: Stage, records: list[MoveRecord]) -> None:
    """Each move's bytes were across before the next one's went."""
    for (_, ended_ns), (began_ns, _) in pairwise(await pushed(stage, records)):
        assert ended_ns <= began_ns


async def test_with_two_receivers_moves_spread(stage: Stage) -> None:
    first, second = await stage.world("node-1"), await stage.world("node-2")
    crowd = [await stage.world("node-4"), await stage.world("node-4")]
    async with bounded(), worlds(first, second, *crowd):
        moving = await stage.holds(first, "node-3")
        # The longer the wire is overdue, the later it is expected to be free: no estimate of a
        # path makes up for as long as these blocks take.
        await second.plays(8)
        # Placement alone would take the emptier node, which is the one that is receiving.
        free = {one.node_id: one.slots_free for one in await stage.client.nodes()}
        assert free["node-3"] > free["node-4"] > 0
        (await second.session.move("")).raise_unless_committed()
        await second.is_at("node-4", epoch=2)
        assert not moving.done(), "it did not wait for the wire that is held"
        stage.hold.release()
        (await moving).raise_unless_committed()
        await first.is_at("node-3", epoch=2)


async def test_every_node_says_what_its_host_digests(stage: Stage) -> None:
    devices = [device for node in await stage.client.nodes() for device in node.devices]
    assert len(devices) == 4
    assert all(device.digest_rate_bytes_per_s > 0 for device in devices)


async def test_two_worlds_into_one_node_go_one_after_the_other(stage: Stage) -> None:
    await stage.warms(("node-1", "node-3"), ("node-2", "node-3"))
    first, second = await stage.world("node-1"), await stage.world("node-2")
    async with bounded(), worlds(first, second):
        moving = await stage.holds(first, "node-3")
        waiting = second.moves("node-3")
        await second.waits()
        assert [one.move_id for one in await stage.wires("node-3") if one.held] == [
            (await stage.client.moves(first.session.session_id, limit=1))[0].move_id
        ]
        began_s = time.monotonic()
        await second.plays(3)  # it waits and plays on
        assert second.phases == [MovePhase.REQUESTED, MovePhase.ADMITTED]
        waited_ms = (time.monotonic() - began_s) * 1e3
        stage.hold.release()
        records = [await moving, await waiting]
        assert [one.phase for one in records] == [MovePhase.DONE] * 2
        # The record says so: while the push is armed the world has not frozen yet.
        assert records[1].timings_ms["arm"] >= waited_ms
        await never_at_once(stage, records)
        for world in (first, second):
            await world.is_at("node-3", epoch=2)


async def test_a_world_that_cannot_wait_is_rejected_and_misses_no_block(stage: Stage) -> None:
    await stage.warms(("node-1", "node-3"), ("node-2", "node-3"))
    first, second = await stage.world("node-1"), await stage.world("node-2", IMPATIENT)
    async with bounded(), worlds(first, second):
        moving = await stage.holds(first, "node-3")
        waiting = second.moves("node-3")
        await second.waits()
        await second.plays(3)
        record = await waiting
        assert record.phase is MovePhase.REJECTED
        assert record.verdict is not None
        verdict = record.verdict
        assert verdict.reason is RejectReason.WIRE_TOO_LATE
        assert verdict.retry_after_ms > 0
        numbers = verdict.numbers
        assert numbers["horizon_ms"] == IMPATIENT.horizon_ms
        assert 0 < numbers["waited_ms"] < numbers["wait_max_ms"] + 30_000
        assert numbers["wait_max_ms"] == pytest.approx(IMPATIENT.horizon_ms - numbers["move_ms"])
        # Nobody asked its engine to stand still, and it does not.
        names = {span.name for span in (await stage.client.trace(record.move_id)).spans}
        assert "freeze" not in names
        assert MovePhase.FROZEN not in second.phases
        await second.plays(2)
        status = await stage.client.status()
        assert status.moves_by_outcome["rejected:WIRE_TOO_LATE"] >= 1
        # Whoever asks while the wire is overdue is told at once that it would be too late.
        at_once = await second.session.move("node-3")
        assert at_once.verdict is not None
        assert at_once.verdict.reason in (RejectReason.RECEIVER_BUSY, RejectReason.WIRE_TOO_LATE)
        assert at_once.verdict.retry_after_ms > 0
        stage.hold.release()
        (await moving).raise_unless_committed()
        while not (again := await second.session.move("node-3")).committed:
            assert again.verdict is not None
            assert not again.verdict.admitted
            await asyncio.sleep(again.verdict.retry_after_ms / 1e3)  # as it was told to
        await second.is_at("node-3", epoch=2)
        await first.is_at("node-3", epoch=2)


async def test_a_move_that_is_given_up_while_it_waits_is_gone_at_once(stage: Stage) -> None:
    await stage.warms(("node-1", "node-3"), ("node-2", "node-3"))
    first, second = await stage.world("node-1"), await stage.world("node-2")
    async with bounded(), worlds(first, second):
        moving = await stage.holds(first, "node-3")
        assert (await second.session.admit("node-3")).admitted
        migrating = asyncio.ensure_future(second.session.migrate())
        await second.waits()
        await second.session.rollback()
        with pytest.raises(Conflict) as caught:
            await migrating
        assert caught.value.reason == "CLIENT_ROLLBACK"
        assert not moving.done(), "the wire is still held, and nobody waits for it"
        assert [one.held for one in await stage.wires("node-3")] == [True]
        assert await stage.wires("node-2") == []
        await second.plays(2)
        stage.hold.release()
        (await moving).raise_unless_committed()
        await first.is_at("node-3", epoch=2)


async def test_a_placement_that_dies_takes_no_wire_along(stage: Stage) -> None:
    await stage.warms(("node-1", "node-3"), ("node-2", "node-3"))
    first, second = await stage.world("node-1"), await stage.world("node-2")
    async with bounded(), worlds(first, second):
        moving = await stage.holds(first, "node-3")
        waiting = second.moves("node-3")
        await second.waits()
        await stage.cluster.kill("placement")

        async def complaints() -> list[str]:
            found = [await stage.wires(node) for node in ("node-1", "node-2", "node-3")]
            return [f"{one.move_id} has a wire" for wires in found for one in wires]

        await until(complaints)  # the movers know by themselves
        await stage.cluster.restart("placement")
        for record in (await moving, await waiting):
            assert record.phase is MovePhase.ABORTED
            assert record.reason == "PLACEMENT_RESTARTED"
        await first.is_at("node-1", epoch=1)
        await second.is_at("node-2", epoch=1)


async def test_an_admission_that_restarts_is_told_before_it_grants(stage: Stage) -> None:
    await stage.warms(("node-1", "node-3"), ("node-2", "node-3"))
    first, second = await stage.world("node-1"), await stage.world("node-2")
    third = await stage.world("node-2")
    async with bounded(), worlds(first, second, third):
        moving = await stage.holds(first, "node-3")
        waiting = second.moves("node-3")
        await second.waits()
        await stage.cluster.kill("admission")
        await stage.cluster.restart("admission")
        assert (await stage.admission()).relearning
        asking = third.moves("node-3")
        await third.waits()
        known = await stage.admission()
        assert not known.relearning
        assert dict(known.verdicts) == {"RELEARNING": 1, "admitted": 1}
        moves = {
            (await stage.client.moves(world.session.session_id, limit=1))[0].move_id
            for world in (first, second, third)
        }
        assert {one.move_id for one in known.holds} == moves
        held = [one.move_id for one in await stage.wires("node-3") if one.held]
        assert len(held) == 1
        await third.plays(2)
        stage.hold.release()
        records = [await moving, await waiting, await asking]
        assert [one.phase for one in records] == [MovePhase.DONE] * 3
        await never_at_once(stage, records)
        # What paths had reached was told too: nobody measured anything again.
        spans = (await stage.client.trace(records[2].move_id)).spans
        assert [one.name for one in spans].count("probe") == 0
        assert [one.name for one in spans].count("relearn") == 1
        for world in (first, second, third):
            await world.is_at("node-3", epoch=2)
