"""A placement among in-test peers, and the questions that hold after every case."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.placement.main import SERVICE_NAME, Placement
from services.placement.peers import Deadlines
from services.placement.settings import PlacementSettings
from services.placement.traces import TraceStore
from tests.unit.placement.fake_admission import FakeAdmission, serve
from tests.unit.placement.fake_engine import FakeEngine
from tests.unit.placement.fake_mover import FakeMover
from tests.unit.placement.faults import Faults
from tests.unit.placement.makers import contract
from worldline.contract import Contract, contract_to_proto
from worldline.rpc.channel import PROTOCOL_VERSION, call, mapped_errors, open_channel
from worldline.rpc.server import GrpcServer
from worldline.state.codec import fingerprint_to_proto
from worldline.v1 import (
    admission_pb2_grpc,
    engine_pb2,
    engine_pb2_grpc,
    move_pb2,
    mover_pb2_grpc,
    placement_pb2,
    placement_pb2_grpc,
)

#: Nobody renews by itself here: a lease ends when a test says so.
LEASE_MS = 600_000
DIGEST_RATE_BYTES_PER_S = 5e9
#: Only what a test holds up is ever late, however busy the machine.
DEADLINES = Deadlines(
    admit_s=60, reserve_s=60, warm_s=60, freeze_s=60, push_s=60, verify_s=60, attach_s=60,
    quick_s=60, describe_s=60, open_s=60, register_s=60, obligation_s=60, finish_s=60,
)  # fmt: skip
#: For tests of steps that do not answer.
SHORT = replace(DEADLINES, attach_s=1, describe_s=1)


class Cluster:
    """Nodes, an admission, a placement that can be stopped and started again."""

    def __init__(self, path: Path, nodes: int = 2, deadlines: Deadlines = DEADLINES) -> None:
        self.path = path
        self.deadlines = deadlines
        numbers = range(1, nodes + 1)
        self.faults = Faults()
        self.admission = FakeAdmission(self.faults)
        self.movers = {
            name: FakeMover(name, self.faults) for name in (f"n{one}" for one in numbers)
        }
        self.engines = {
            name: FakeEngine(name, self.faults, self.movers[f"n{name[1]}"])
            for name in (f"e{one}" for one in numbers)
        }
        self.addresses: dict[str, str] = {}
        self.servers: dict[str, GrpcServer] = {}
        self.placement: Placement | None = None
        self._traces: TraceStore | None = None
        self._channel: Any = None
        self.stub: Any = None

    async def start(self) -> None:
        register_mover = mover_pb2_grpc.add_MoverServiceServicer_to_server
        register_engine = engine_pb2_grpc.add_EngineServiceServicer_to_server
        register_admission = admission_pb2_grpc.add_AdmissionServiceServicer_to_server
        for name, mover in self.movers.items():
            mover.peer_slots = self.slots_of
            mover.peer_landed = lambda node_id: self.movers[node_id].has_landed
            self.servers[name], self.addresses[name] = await serve(register_mover, mover)
        for name, engine in self.engines.items():
            self.servers[name], self.addresses[name] = await serve(register_engine, engine)
        self.servers["admission"], self.addresses["admission"] = await serve(
            register_admission, self.admission
        )
        await self.start_placement()
        for name in self.movers:
            await self.register_node(name)
        for name in self.engines:
            await self.register_engine(name)

    async def start_placement(self) -> None:
        settings = PlacementSettings(
            admission_address=self.addresses["admission"],
            directory_path=str(self.path / "directory.db"),
            engine_lease_ms=LEASE_MS,
            node_lease_ms=LEASE_MS,
            orphan_grace_ms=0,
            rest_s=20.0,
        )
        self._traces = TraceStore(settings.traces_file())
        self.placement = Placement(settings, self._traces, self.deadlines)
        await self.placement.start()
        self.servers["placement"], address = await serve(
            placement_pb2_grpc.add_PlacementServiceServicer_to_server, self.placement.servicer
        )
        assert SERVICE_NAME.endswith("PlacementService")
        self._channel = open_channel(address)
        self.stub = placement_pb2_grpc.PlacementServiceStub(self._channel)

    async def crash_placement(self) -> None:
        """Stop without any grace: what is under way is left as it stands in the directory."""
        assert self.placement is not None
        assert self._traces is not None
        runtime = self.placement.runtime
        await runtime.owner.close()
        await self._channel.close()
        await self.servers.pop("placement").stop(0)
        await self.placement.peers.close()
        await self.placement.directory.close()
        self._traces.close()
        self.placement = None

    async def stop(self) -> None:
        if self.placement is not None:
            assert self._traces is not None
            await self.placement.runtime.stop(5)
            await self._channel.close()
            await self.servers.pop("placement").stop(0)
            await self.placement.stop(0)
            self._traces.close()
        for gate in self.faults.gates.values():
            gate.set()
        for server in self.servers.values():
            await server.stop(0)

    async def kill(self, name: str) -> None:
        """A peer's process is gone with all it held, and its lease has run out."""
        await self.servers.pop(name).stop(0)
        if name in self.engines:
            self.engines[name].worlds.clear()
        else:
            self.movers[name].slots.clear()
        self.silence(name)

    def silence(self, name: str) -> None:
        """An engine's or a node's lease has run out, before its time."""
        assert self.placement is not None
        fleet = self.placement.fleet
        leases = fleet._engine_until if name in self.engines else fleet._node_until
        leases[name] = float("-inf")
        fleet._changed(f"n{name[1:]}")

    async def register_node(self, name: str, incarnation: str = "j1") -> None:
        await self.ask(
            "RegisterNode",
            placement_pb2.RegisterNodeRequest(
                protocol_version=PROTOCOL_VERSION,
                node_id=name,
                mover_address=self.addresses[name],
                incarnation=incarnation,
                host_id="here",
                devices=[
                    placement_pb2.Device(
                        name="cpu",
                        slots_total=self.movers[name].slots_total,
                        slot_bytes=1 << 20,
                        digest_rate_bytes_per_s=DIGEST_RATE_BYTES_PER_S,
                    )
                ],
            ),
        )

    async def register_engine(self, name: str, incarnation: str = "i1") -> None:
        await self.ask(
            "RegisterEngine",
            placement_pb2.RegisterEngineRequest(
                protocol_version=PROTOCOL_VERSION,
                engine_id=name,
                node_id=f"n{name[1]}",
                engine_address=self.addresses[name],
                device="cpu",
                fingerprint=fingerprint_to_proto(self.engines[name].fingerprint),
                incarnation=incarnation,
            ),
        )

    async def renew_engine(
        self, name: str, incarnation: str = "i1", failed: dict[str, int] | None = None
    ) -> dict[str, int]:
        request = placement_pb2.RenewEngineRequest(engine_id=name, incarnation=incarnation)
        for session_id, epoch in (failed or {}).items():
            request.failed.add(session_id=session_id, epoch=epoch, message="the model failed")
        answer = await self.ask("RenewEngine", request)
        return {one.session_id: one.epoch for one in answer.owned}

    # --- what clients do ---

    async def ask(self, method: str, request: Any) -> Any:
        return await call(getattr(self.stub, method), request, timeout_s=60)

    async def open(self, node_id: str = "n1", key: str = "", of: Contract | None = None) -> Any:
        return await self.ask(
            "OpenSession",
            placement_pb2.OpenSessionRequest(
                contract=contract_to_proto(of or contract()),
                world=engine_pb2.WorldSpec(preset="tiny", seed=1),
                node_id=node_id,
                idempotency_key=key,
            ),
        )

    async def session(self, node_id: str = "n1") -> str:
        return str((await self.open(node_id)).session.session_id)

    async def resolve(self, session_id: str) -> Any:
        request = placement_pb2.ResolveSessionRequest(session_id=session_id)
        return (await self.ask("ResolveSession", request)).session

    async def move(
        self, session_id: str, target: str = "n2", key: str = "", saves_ms: float = 0.0
    ) -> Any:
        """The record that MoveSession ends with."""
        *_, last = [one async for one in self.watch_move(session_id, target, key, saves_ms)]
        assert last.WhichOneof("event") == "move"
        return last.move

    async def watch_move(
        self, session_id: str, target: str = "n2", key: str = "", saves_ms: float = 0.0
    ) -> AsyncIterator[Any]:
        request = placement_pb2.MoveSessionRequest(
            session_id=session_id, target_node_id=target, idempotency_key=key, saves_ms=saves_ms
        )
        async with mapped_errors():
            async for response in self.stub.MoveSession(request, timeout=60):
                yield response

    async def admit(self, session_id: str, target: str = "n2", saves_ms: float = 0.0) -> Any:
        request = placement_pb2.AdmitMigrationRequest(
            session_id=session_id, target_node_id=target, saves_ms=saves_ms
        )
        return await self.ask("AdmitMigration", request)

    async def migrate(self, move_id: str) -> list[Any]:
        request = placement_pb2.MigrateRequest(move_id=move_id)
        async with mapped_errors():
            return [one async for one in self.stub.Migrate(request, timeout=60)]

    async def verb(self, name: str, move_id: str) -> Any:
        request = getattr(placement_pb2, f"{name}MigrationRequest")(move_id=move_id)
        return await self.ask(f"{name}Migration", request)

    async def record(self, move_id: str) -> Any:
        request = placement_pb2.GetMoveRequest(move_id=move_id)
        return (await self.ask("GetMove", request)).move

    async def ended(self, move_id: str) -> Any:
        """The record once the move is over, however long its client has been away."""
        assert self.placement is not None
        task = self.placement.runtime.move_task(move_id)
        if task is not None:
            await task.until(lambda one: one.ended, 60)
        return await self.record(move_id)

    # --- what must hold ---

    def slots_of(self, node_id: str, session_id: str) -> list[move_pb2.SlotRef]:
        return [
            move_pb2.SlotRef(node_id=node_id, slot_index=index, generation=generation)
            for (index, generation), (owner, _) in self.movers[node_id].slots.items()
            if owner == session_id
        ]

    def running(self, session_id: str) -> list[str]:
        """Engines that generate for the session."""
        return [
            name
            for name, engine in self.engines.items()
            if engine.worlds.get(session_id, ("", 0))[0] == "running"
        ]

    def check_at(self, session_id: str, engine_name: str) -> None:
        """O2, O4: the world runs in exactly one place, and nothing is left anywhere else."""
        assert self.running(session_id) == [engine_name]
        worlds = [name for name, one in self.engines.items() if session_id in one.worlds]
        assert worlds == [engine_name]
        node = f"n{engine_name[1]}"
        held = {name: sorted(mover.slots.values()) for name, mover in self.movers.items()}
        others = [name for name in self.movers if name != node]
        assert held[node] == [(session_id, "live")]
        assert all(not held[name] for name in others)
        self.check_idle()

    def check_idle(self) -> None:
        assert not self.admission.held, "a ticket is held"
        assert self.placement is not None
        assert self.placement.runtime.open_move_tasks() == ()


@asynccontextmanager
async def running_cluster(
    path: Path, nodes: int = 2, deadlines: Deadlines = DEADLINES
) -> AsyncIterator[Cluster]:
    cluster = Cluster(path, nodes, deadlines)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()
