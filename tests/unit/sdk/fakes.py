"""In-process engines and a placement that break on demand, behind real gRPC servers."""

# ruff: noqa: N802 - gRPC's method names
from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from tests.rows import row
from worldline.admissibility.row_codec import row_to_proto
from worldline.errors import Conflict, IntegrityError, NotFound, TransferFailed, Unavailable
from worldline.rpc.server import GrpcServer
from worldline.v1 import (
    contract_pb2,
    engine_pb2,
    engine_pb2_grpc,
    move_pb2,
    park_pb2,
    placement_pb2,
    placement_pb2_grpc,
)


def frames_of(block_index: int) -> bytes:
    """Frames of a fake block: 2 of 2 x 3 pixels, filled with the low byte of the index."""
    return bytes([block_index % 256]) * (2 * 2 * 3 * 3)


@dataclass
class FakeWorld:
    """One session, shared by all fake engines: exactly one of them owns it."""

    session_id: str = "session-1"
    epoch: int = 1
    owner: int = 0
    state: str = "live"
    next_block_index: int = 0
    outbox: dict[int, engine_pb2.Block] = field(default_factory=dict)
    #: The action that each block was generated from.
    used: dict[int, engine_pb2.Action] = field(default_factory=dict)
    #: What goes wrong at a block: each fault happens once.
    faults: dict[int, str] = field(default_factory=dict)
    joins: list[tuple[int, int]] = field(default_factory=list)
    block_counts: placement_pb2.BlockCounts | None = None

    def generate(self, action: engine_pb2.Action) -> engine_pb2.Block:
        index = action.block_index
        assert index == self.next_block_index, (index, self.next_block_index)
        self.used[index] = action
        block = engine_pb2.Block(
            block_index=index,
            epoch=self.epoch,
            frames=frames_of(index),
            frame_count=2,
            height=2,
            width=3,
            state_digest=1000 + index,
            frames_digest=index,
            generate_ms=1.5,
        )
        self.outbox[index] = block
        self.next_block_index += 1
        return block

    def move(self, engines: int) -> None:
        self.owner = (self.owner + 1) % engines
        self.epoch += 1


class FakeEngine(engine_pb2_grpc.EngineServiceServicer):
    def __init__(self, world: FakeWorld, number: int, engines: int) -> None:
        self.world, self.number, self.engines = world, number, engines
        self.metadata: list[dict[str, str]] = []

    async def Play(self, requests: Any, context: Any) -> AsyncIterator[engine_pb2.PlayResponse]:
        world = self.world
        self.metadata.append({str(key): value for key, value in context.invocation_metadata()})
        join = (await anext(aiter(requests))).join
        world.joins.append((self.number, join.next_block_index))
        if join.session_id != world.session_id:
            raise NotFound("no such session here", field="join.session_id")
        if world.state == "suspended":
            raise Conflict("it is suspended", reason="SESSION_SUSPENDED")
        owned = world.owner == self.number
        yield engine_pb2.PlayResponse(
            joined=engine_pb2.Joined(epoch=world.epoch, next_block_index=world.next_block_index)
        )
        for index in range(join.next_block_index, world.next_block_index):
            if index not in world.outbox:
                raise IntegrityError("blocks are gone", reason="BLOCKS_LOST")
            yield engine_pb2.PlayResponse(block=world.outbox[index])
        if not owned:
            yield self._moved()
            return
        async for request in requests:
            async for response in self._one(request.action):
                yield response
            if world.owner != self.number:
                return

    async def _one(self, action: engine_pb2.Action) -> AsyncIterator[engine_pb2.PlayResponse]:
        world, index = self.world, action.block_index
        fault = world.faults.pop(index, "")
        if fault == "drop_before":
            raise Unavailable("broken before the block")
        if fault == "transfer":
            raise TransferFailed("broken in transfer")
        if fault == "move_before":
            world.move(self.engines)
            yield self._moved()
            return
        if fault == "suspended":
            world.state = "suspended"
            raise Conflict("it is suspended", reason="SESSION_SUSPENDED")
        if fault == "superseded":
            raise Conflict("a newer stream took over", reason="SUPERSEDED")
        block = world.generate(action)
        if fault == "drop_after":
            raise Unavailable("broken after the block")
        if fault == "lose":
            world.outbox.clear()
            raise Unavailable("broken, and the outbox is gone")
        if fault == "skip":
            block = engine_pb2.Block()
            block.CopyFrom(world.outbox[index])
            block.block_index += 1
        yield engine_pb2.PlayResponse(block=block)
        if fault == "twice":
            yield engine_pb2.PlayResponse(block=block)
        if fault == "move_after":
            world.move(self.engines)
            yield self._moved()

    def _moved(self) -> engine_pb2.PlayResponse:
        return engine_pb2.PlayResponse(moved=engine_pb2.Moved(epoch=self.world.epoch))


class FakePlacementServicer(placement_pb2_grpc.PlacementServiceServicer):
    """Answers from `world`; `script[method]` is a list of errors to raise first, one a call."""

    def __init__(self, world: FakeWorld) -> None:
        self.world = world
        self.engine_addresses: list[str] = []
        self.script: dict[str, list[Exception | None]] = defaultdict(list)
        self.calls: list[tuple[str, Any]] = []
        self.metadata: list[dict[str, str]] = []
        self.verdict = move_pb2.Verdict(admitted=True, explanation="fits")
        self.records: list[move_pb2.MoveRecord] = []
        self.manifest = placement_pb2.RegisterStateResponse().manifest
        self.move_events: list[placement_pb2.MoveSessionResponse] = []
        #: After its events a move says nothing more.
        self.move_hangs = False
        self.move_began = threading.Event()
        self.suspension: park_pb2.SuspensionRecord | None = None
        self.replies_lost = 0
        #: What DescribeDrain says, one answer a call; the last one again and again.
        self.drains: list[list[placement_pb2.DrainRecord]] = [[]]
        self.moves = [move_pb2.MoveRecord(move_id="move-1", phase=move_pb2.MOVE_PHASE_DONE)]
        span = placement_pb2.GetTraceResponse.Span
        self.spans = [
            span(span_id="a", service="placement", name="move", duration_ms=4, status="ok"),
            span(
                span_id="b",
                parent_span_id="a",
                service="mover",
                name="mover.push",
                start_offset_ms=1,
                duration_ms=2,
                status="ok",
                attributes={"bytes": "7"},
            ),
        ]

    def session(self) -> placement_pb2.Session:
        world = self.world
        return placement_pb2.Session(
            session_id=world.session_id,
            epoch=world.epoch,
            engine_id=f"engine-{world.owner}",
            node_id=f"node-{world.owner}",
            engine_address=self.engine_addresses[world.owner] if self.engine_addresses else "",
            contract=contract_pb2.Contract(
                service_class=contract_pb2.SERVICE_CLASS_C1_INTERACTIVE,
                horizon_ms=100,
                quality_floor_steps=1,
                determinism_tier=contract_pb2.DETERMINISM_TIER_T0_BITWISE,
                decode_tier=contract_pb2.DECODE_TIER_FULL,
            ),
            world=engine_pb2.WorldSpec(preset="tiny", seed=3),
            state=world.state,
            block_counts=world.block_counts,
        )

    async def SuspendSession(self, request: Any, context: Any) -> Any:
        self._called("SuspendSession", request, context)
        if self.replies_lost:
            self.replies_lost -= 1
            # gRPC's own word, as when the process died with its answer: no service of ours spoke.
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the socket closed")
        self.world.state = "suspended"
        answer = placement_pb2.SuspendSessionResponse(session=self.session())
        answer.session.parked = request.kind
        answer.session.engine_address = ""
        if self.suspension is not None:
            answer.suspension.CopyFrom(self.suspension)
        return answer

    async def ResumeSession(self, request: Any, context: Any) -> Any:
        self._called("ResumeSession", request, context)
        if not self.verdict.admitted:
            return placement_pb2.ResumeSessionResponse(session=self.session(), verdict=self.verdict)
        self.world.state = "live"
        self.world.move(len(self.engine_addresses))
        answer = placement_pb2.ResumeSessionResponse(session=self.session())
        if self.suspension is not None:
            answer.suspension.CopyFrom(self.suspension)
        return answer

    def _called(self, name: str, request: Any, context: Any) -> None:
        self.calls.append((name, request))
        self.metadata.append({str(key): value for key, value in context.invocation_metadata()})
        if self.script[name]:
            error = self.script[name].pop(0)
            if error is not None:
                raise error

    async def OpenSession(self, request: Any, context: Any) -> Any:
        self._called("OpenSession", request, context)
        answer = placement_pb2.OpenSessionResponse(verdict=self.verdict)
        if self.verdict.admitted:
            answer.session.CopyFrom(self.session())
        return answer

    async def ForkSession(self, request: Any, context: Any) -> Any:
        self._called("ForkSession", request, context)
        answer = placement_pb2.ForkSessionResponse(verdict=self.verdict)
        for number in range(request.count if self.verdict.admitted else 0):
            branch = answer.branches.add()
            branch.CopyFrom(self.session())
            branch.session_id = f"branch-{number}"
            if request.HasField("contract"):
                branch.contract.CopyFrom(request.contract)
            branch.forked_from.session_id = request.session_id
            branch.forked_from.epoch = self.world.epoch
            branch.forked_from.block_index = self.world.next_block_index
            branch.forked_from.branch = request.first_branch + number
            branch.forked_from.same_noise = request.same_noise
        return answer

    async def CloseSession(self, request: Any, context: Any) -> Any:
        self._called("CloseSession", request, context)
        return placement_pb2.CloseSessionResponse()

    async def ResolveSession(self, request: Any, context: Any) -> Any:
        self._called("ResolveSession", request, context)
        if request.session_id != self.world.session_id:
            raise NotFound("no such session", field="session_id")
        return placement_pb2.ResolveSessionResponse(session=self.session())

    async def RegisterState(self, request: Any, context: Any) -> Any:
        self._called("RegisterState", request, context)
        return placement_pb2.RegisterStateResponse(manifest=self.manifest)

    async def AdmitMigration(self, request: Any, context: Any) -> Any:
        self._called("AdmitMigration", request, context)
        return placement_pb2.AdmitMigrationResponse(verdict=self.verdict, move_id="move-1")

    async def Migrate(self, request: Any, context: Any) -> Any:
        self._called("Migrate", request, context)
        for phase in (move_pb2.MOVE_PHASE_RESERVED, move_pb2.MOVE_PHASE_FROZEN, 77):
            progress = placement_pb2.MoveProgress(phase=phase, sent_bytes=1, total_bytes=2)
            yield placement_pb2.MigrateResponse(progress=progress)
        yield placement_pb2.MigrateResponse(manifest=self.manifest)

    async def VerifyMigration(self, request: Any, context: Any) -> Any:
        self._called("VerifyMigration", request, context)
        return placement_pb2.VerifyMigrationResponse(
            equal=False, failure=move_pb2.Failure(reason="DIGEST_MISMATCH", leaf="k", granule=7)
        )

    async def CommitMigration(self, request: Any, context: Any) -> Any:
        self._called("CommitMigration", request, context)
        return placement_pb2.CommitMigrationResponse(manifest=self.manifest)

    async def RollbackMigration(self, request: Any, context: Any) -> Any:
        self._called("RollbackMigration", request, context)
        return placement_pb2.RollbackMigrationResponse(manifest=self.manifest)

    async def ListNodes(self, request: Any, context: Any) -> Any:
        self._called("ListNodes", request, context)
        uuid = "GPU-6a1b2c3d-0000-0000-0000-000000000000"
        engine = placement_pb2.Engine(
            engine_id="engine-0",
            node_id="node-0",
            alive=True,
            device="cuda:0",
            device_uuid=uuid,
            rows=[row_to_proto(row("mg2", age_ms=2_400.0))],
        )
        devices = [
            placement_pb2.Device(name="cpu", slots_total=4, slots_free=3),
            placement_pb2.Device(
                name="cuda:1",
                uuid=uuid,
                slots_total=2,
                slots_free=1,
                numa_node=1,
                nvlink_peers=["GPU-peer"],
                pcie_peers=["GPU-beside"],
            ),
        ]
        node = placement_pb2.Node(node_id="node-0", engines=[engine], devices=devices)
        return placement_pb2.ListNodesResponse(nodes=[node])

    async def Drain(self, request: Any, context: Any) -> Any:
        self._called("Drain", request, context)
        return placement_pb2.DrainResponse(drains=self.drains[0])

    async def DescribeDrain(self, request: Any, context: Any) -> Any:
        self._called("DescribeDrain", request, context)
        drains = self.drains.pop(0) if len(self.drains) > 1 else self.drains[0]
        return placement_pb2.DescribeDrainResponse(drains=drains, version=f"{len(self.calls)}")

    async def Undrain(self, request: Any, context: Any) -> Any:
        self._called("Undrain", request, context)
        return placement_pb2.UndrainResponse(node_ids=request.node_ids[:1])

    async def ListSessions(self, request: Any, context: Any) -> Any:
        return placement_pb2.ListSessionsResponse(sessions=[self.session()])

    async def ListMoves(self, request: Any, context: Any) -> Any:
        return placement_pb2.ListMovesResponse(moves=self.moves)

    async def DescribePlacement(self, request: Any, context: Any) -> Any:
        census = move_pb2.Census(counts={"tasks": 3})
        return placement_pb2.DescribePlacementResponse(
            census=census, moves_by_outcome={"committed": 1}
        )

    async def GetTrace(self, request: Any, context: Any) -> Any:
        return placement_pb2.GetTraceResponse(trace_id="t", spans=self.spans)

    async def GetMove(self, request: Any, context: Any) -> Any:
        self._called("GetMove", request, context)
        record = self.records.pop(0) if len(self.records) > 1 else self.records[0]
        return placement_pb2.GetMoveResponse(move=record)

    async def WatchMove(self, request: Any, context: Any) -> Any:
        self._called("WatchMove", request, context)
        for event in self.move_events:
            if event.WhichOneof("event") == "move":
                yield placement_pb2.WatchMoveResponse(move=event.move)
            else:
                yield placement_pb2.WatchMoveResponse(progress=event.progress)

    async def MoveSession(self, request: Any, context: Any) -> Any:
        self._called("MoveSession", request, context)
        self.move_began.set()
        for event in self.move_events:
            yield event
        if self.move_hangs:
            await asyncio.get_running_loop().create_future()


@dataclass
class Stage:
    """Everything that a client needs, running."""

    world: FakeWorld
    placement: FakePlacementServicer
    engines: list[FakeEngine]
    servers: list[GrpcServer]
    address: str

    @classmethod
    async def build(cls, engines: int = 2) -> Stage:
        world = FakeWorld()
        placement = FakePlacementServicer(world)
        fakes = [FakeEngine(world, number, engines) for number in range(engines)]
        servers = []
        for fake in fakes:
            server = GrpcServer()
            placement.engine_addresses.append(server.bind("127.0.0.1:0"))
            server.add(engine_pb2_grpc.add_EngineServiceServicer_to_server, fake, "engine")
            await server.start()
            servers.append(server)
        server = GrpcServer()
        address = server.bind("127.0.0.1:0")
        add = placement_pb2_grpc.add_PlacementServiceServicer_to_server
        server.add(add, placement, "placement")
        await server.start()
        return cls(world, placement, fakes, [*servers, server], address)

    async def close(self) -> None:
        for server in self.servers:
            await server.stop(0)
