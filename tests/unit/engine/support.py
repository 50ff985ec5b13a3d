"""What the engine's tests share: private slots, an in-test slot server, a fake directory."""

from __future__ import annotations

import asyncio
import mmap
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, cast

import grpc
import torch

from services.engine.chores import Chores
from services.engine.core import World
from services.engine.device import CPU_DEVICE
from services.engine.engine import Engine
from services.engine.events import MoveOutcome
from services.engine.model.causal import CausalWorld
from services.engine.model.config import TINY, WorldConfig
from services.engine.model.factory import engine_code, weights_digest
from services.engine.model.weights import build_weights
from services.engine.models import Models
from services.engine.selfcheck import SelfCheck
from services.engine.servicer import EngineServicer
from services.engine.slotfetch import map_slot
from services.engine.slotmap import SlotMap
from services.engine.tombstones import FailedWorld
from services.engine.upkeep import Identity, Upkeep
from services.engine.worker import Worker
from services.engine.world import Action, Frames, StateTree, WorldModel
from worldline.admissibility.profile_row import ProfileRow
from worldline.contract import Contract, ServiceClass, contract_to_proto
from worldline.errors import CapacityExhausted
from worldline.rpc.channel import call, mapped_errors, open_channel
from worldline.rpc.server import GrpcServer
from worldline.state.digest import crc64, digest_slot
from worldline.state.fingerprint import cpu_fingerprint
from worldline.state.layout import Layout
from worldline.state.tree import materialize, pack, plan
from worldline.v1 import engine_pb2, move_pb2
from worldline.v1.engine_pb2_grpc import EngineServiceStub, add_EngineServiceServicer_to_server

DEADLINE_S = 60.0


class PrivateState:
    """A state tree in ordinary memory, digested like a slot."""

    def __init__(self, model: WorldModel, seed: int = 7) -> None:
        self.model = model
        self.layout: Layout = plan(model.state_spec())
        self.buffer = torch.zeros(self.layout.extent_bytes, dtype=torch.uint8)
        self.tree = cast(StateTree, materialize(self.layout, self.buffer))
        model.initialise(self.tree, seed)

    def block(self, action: Action, steps: int | None = None) -> Frames:
        """Run one block to its end; of full quality unless `steps` says."""
        return run_block(self.model, self.tree, action, steps)

    def digest(self) -> int:
        """Whole digest of bytes and scalars."""
        layout = pack(self.tree, self.layout, self.buffer)
        return digest_slot(layout, memoryview(self.buffer.numpy())).whole

    def copy(self) -> PrivateState:
        """An independent twin at the same block."""
        twin = PrivateState.__new__(PrivateState)
        twin.model = self.model
        twin.layout = pack(self.tree, self.layout, self.buffer)
        twin.buffer = self.buffer.clone()
        twin.tree = cast(StateTree, materialize(twin.layout, twin.buffer))
        return twin


def run_block(
    model: WorldModel, state: StateTree, action: Action, steps: int | None = None
) -> Frames:
    run = model.block(state, action, model.denoising_steps if steps is None else steps)
    while True:
        try:
            next(run)
        except StopIteration as finished:
            return cast(Frames, finished.value)


def script(block_index: int) -> Action:
    """Some action for every block, none like its neighbours."""
    return Action(
        block_index,
        keyboard=(block_index * 5 + 1) % 16,
        mouse_dx=((block_index * 3) % 7 - 3) / 3,
        mouse_dy=((block_index * 5) % 5 - 2) / 4,
    )


def tiny_world(seed: int = 0, config: WorldConfig = TINY) -> CausalWorld:
    return CausalWorld(build_weights(config, seed, torch.device("cpu")))


class SlotServer:
    """A mover's slot socket: memfds handed over against single-use tokens."""

    def __init__(self, path: str, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.descriptors: dict[int, int] = {}
        self._tokens: dict[bytes, int] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def make(self, index: int) -> None:
        descriptor = os.memfd_create(f"wl-test-slot-{index}")
        os.ftruncate(descriptor, self.size_bytes)
        self.descriptors[index] = descriptor

    def token(self, index: int) -> bytes:
        token = secrets.token_bytes(32)
        self._tokens[token] = index
        return token

    @contextmanager
    def bytes_of(self, index: int) -> Iterator[mmap.mmap]:
        with mmap.mmap(self.descriptors[index], self.size_bytes) as mapped:
            yield mapped

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
            last.connect(self.path)
        self._thread.join(DEADLINE_S)
        self._listener.close()
        os.unlink(self.path)
        for descriptor in self.descriptors.values():
            os.close(descriptor)

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            with client:
                client.settimeout(DEADLINE_S)
                token = client.recv(32)
                if not token:
                    return
                index = self._tokens.pop(token, None)
                if index is None:
                    client.sendall(b"\x00")
                else:
                    socket.send_fds(client, [b"\x01"], [self.descriptors[index]])


class TestSlots:
    """`Slots` over a `SlotServer`, without a mover's gRPC."""

    __test__ = False

    def __init__(self, server: SlotServer, slots: int = 4, node_id: str = "n1") -> None:
        self.server = server
        self.free = list(range(slots))
        self.node_id = node_id
        self.released: list[int] = []
        self.refuse_map = False

    async def allocate(self, session_id: str, extent_bytes: int) -> move_pb2.SlotRef:
        if not self.free or extent_bytes > self.server.size_bytes:
            raise CapacityExhausted("no slot")
        index = self.free.pop(0)
        self.server.make(index)
        return move_pb2.SlotRef(node_id=self.node_id, slot_index=index, generation=1)

    async def map(self, slot: move_pb2.SlotRef, session_id: str) -> SlotMap:
        token = secrets.token_bytes(32) if self.refuse_map else self.server.token(slot.slot_index)
        return await asyncio.to_thread(
            map_slot, self.server.path, token, self.server.size_bytes, DEADLINE_S, CPU_DEVICE
        )

    async def release(self, slot: move_pb2.SlotRef, session_id: str) -> None:
        self.released.append(slot.slot_index)


class FakeDirectory:
    """Placement's side of upkeep: leases, ownership, move records, all set by the test."""

    def __init__(self) -> None:
        self.lease_ms = 60_000.0
        self.owned: dict[str, int] = {}
        self.outcomes: dict[str, MoveOutcome] = {}
        self.asked: list[str] = []
        self.registered: list[str] = []
        self.failure: Exception | None = None
        self.rows: tuple[ProfileRow, ...] = ()
        self.failed: tuple[FailedWorld, ...] = ()
        self.self_checks: tuple[SelfCheck, ...] = ()
        self.running: dict[str, tuple[int, int]] = {}
        #: How long the last renewal would have waited for its answer.
        self.within_s = 0.0

    async def register(self, **facts: Any) -> float:
        if self.failure is not None:
            raise self.failure
        self.registered.append(facts["engine_id"])
        return self.lease_ms

    async def renew(
        self,
        engine_id: str,
        incarnation: str,
        rows: tuple[ProfileRow, ...],
        failed: tuple[FailedWorld, ...],
        running: Iterable[World],
        within_s: float,
        self_checks: tuple[SelfCheck, ...] = (),
    ) -> tuple[float, dict[str, int]]:
        self.rows = rows
        self.failed = failed
        self.self_checks = self_checks
        self.running = {one.session_id: (one.epoch, one.block_index) for one in running}
        self.within_s = within_s
        if self.failure is not None:
            raise self.failure
        return self.lease_ms, dict(self.owned)

    async def outcome(self, move_id: str) -> MoveOutcome:
        self.asked.append(move_id)
        return self.outcomes.get(move_id, MoveOutcome())


class Harness:
    """One engine with its loops and a real gRPC server, over in-test slots."""

    def __init__(self, server: SlotServer, *, threads: int = 1, node_id: str = "n1") -> None:
        self.slots = TestSlots(server, node_id=node_id)
        self.directory = FakeDirectory()
        self.worker = Worker(threads)
        self.fingerprint = cpu_fingerprint(
            engine_code=engine_code(), weights_digest=weights_digest(0), threads=threads
        )
        self.chores = Chores(self.worker)
        self.engine = Engine(
            chores=self.chores,
            models=Models(self.chores, 0, torch.device("cpu")),
            slots=self.slots,
            fingerprint=self.fingerprint,
        )
        identity = Identity("e1", node_id, "here:1", CPU_DEVICE, "inc")
        self.upkeep = Upkeep(self.engine, cast(Any, self.directory), identity)
        self.server = GrpcServer()
        self.address = self.server.bind("127.0.0.1:0")
        self.server.add(
            add_EngineServiceServicer_to_server,
            EngineServicer(self.engine, "e1"),
            "worldline.v1.EngineService",
        )

    async def __aenter__(self) -> Harness:
        await self.server.start()
        await self.upkeep.register(1.0)
        self._loop = asyncio.create_task(self.engine.generation.run())
        self._channel = open_channel(self.address)
        self.stub = EngineServiceStub(self._channel)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._channel.close()
        await self.server.stop(0)
        self._loop.cancel()
        await asyncio.gather(self._loop, return_exceptions=True)
        self.worker.close()
        await self.engine.shut_down()

    async def open(self, session_id: str = "s1", preset: str = "tiny", **contract: Any) -> Any:
        return await call(
            self.stub.OpenWorld,
            engine_pb2.OpenWorldRequest(
                session_id=session_id,
                epoch=1,
                contract=contract_to_proto(contract_of(**contract)),
                world=engine_pb2.WorldSpec(preset=preset, seed=7),
            ),
            timeout_s=DEADLINE_S,
        )

    async def ask(self, name: str, request: Any) -> Any:
        return await call(getattr(self.stub, name), request, timeout_s=DEADLINE_S)

    async def freeze(self, move_id: str = "m1", session_id: str = "s1", epoch: int = 1) -> Any:
        return await self.ask(
            "Freeze",
            engine_pb2.FreezeRequest(session_id=session_id, epoch=epoch, move_id=move_id),
        )

    @contextmanager
    def held_quanta(self) -> Iterator[None]:
        """Inside, a quantum that has begun does not end."""
        may_end, submit = threading.Event(), self.worker.submit

        def held(function: Callable[[], Any]) -> Any:
            def work() -> Any:
                result = function()
                assert may_end.wait(DEADLINE_S)
                return result

            return submit(work)

        self.worker.submit = held  # type: ignore[method-assign]
        try:
            yield
        finally:
            del self.worker.submit
            may_end.set()

    def join(self, next_block_index: int, session_id: str = "s1", **wants: bool) -> Player:
        return Player(self.stub, session_id, next_block_index, **wants)


def contract_of(**facts: Any) -> Contract:
    return Contract(**{"service_class": ServiceClass.C1_INTERACTIVE, "horizon_ms": 1000.0, **facts})


class Player:
    """A client of `Play`, one message at a time, every wait bounded."""

    def __init__(self, stub: Any, session_id: str, next_block_index: int, **wants: bool) -> None:
        self.call = stub.Play(timeout=60)
        self._join = engine_pb2.Join(
            session_id=session_id,
            next_block_index=next_block_index,
            **{"digests_wanted": True, "frames_wanted": True, **wants},
        )

    async def __aenter__(self) -> Player:
        await self.write(engine_pb2.PlayRequest(join=self._join))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.call.cancel()

    async def write(self, request: engine_pb2.PlayRequest) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.call.write(request)

    async def act(self, action: Action) -> None:
        message = engine_pb2.Action(
            block_index=action.block_index,
            keyboard=action.keyboard,
            mouse_dx=action.mouse_dx,
            mouse_dy=action.mouse_dy,
        )
        await self.write(engine_pb2.PlayRequest(action=message))

    async def read(self) -> engine_pb2.PlayResponse:
        """The next response. Raises the engine's error."""
        async with mapped_errors(), asyncio.timeout(DEADLINE_S):
            answer = await self.call.read()
            if answer is grpc.aio.EOF:
                code = await self.call.code()
                if code is not grpc.StatusCode.OK:
                    # read() hides the status once the stream is over: ask for it again.
                    await self.call
                raise EOFError
            return cast(engine_pb2.PlayResponse, answer)

    async def joined(self) -> engine_pb2.Joined:
        answer = await self.read()
        assert answer.WhichOneof("event") == "joined", answer
        return answer.joined

    async def block(self) -> engine_pb2.Block:
        answer = await self.read()
        assert answer.WhichOneof("event") == "block", answer
        return answer.block

    async def play(self, first: int, count: int) -> list[engine_pb2.Block]:
        """Act and read, one block at a time."""
        blocks = []
        for index in range(first, first + count):
            await self.act(script(index))
            blocks.append(await self.block())
        return blocks


class _Twin:
    """A tiny world that never moved, played once for all tests of a process."""

    session: PrivateState | None = None
    digests: ClassVar[list[tuple[int, int]]] = []


def twin_digests(count: int) -> list[tuple[int, int]]:
    """State and frames digests of the twin's first blocks, under `script`'s actions."""
    if _Twin.session is None:
        _Twin.session = PrivateState(tiny_world(), seed=7)
    for index in range(len(_Twin.digests), count):
        frames = _Twin.session.block(script(index))
        _Twin.digests.append((_Twin.session.digest(), crc64(frames.pixels)))
    return _Twin.digests[:count]


async def until(condition: Any, session: Any) -> None:
    """Wait until `condition()`, looking again at every change of the session."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await session.changed.token().wait()


def slot_mapped() -> bool:
    """Whether this process maps any slot of a `SlotServer`."""
    return "wl-test-slot" in Path("/proc/self/maps").read_text()
