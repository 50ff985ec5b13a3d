"""What the engine's tests share: private slots, an in-test slot server, a fake directory."""

from __future__ import annotations

import asyncio
import mmap
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch

from services.engine.events import MoveOutcome
from services.engine.model.causal import CausalWorld
from services.engine.model.config import TINY, WorldConfig
from services.engine.model.weights import build_weights
from services.engine.slotmap import SlotMap, map_slot
from services.engine.world import Action, Frames, StateTree, WorldModel
from worldline.errors import CapacityExhausted
from worldline.state.digest import digest_slot
from worldline.state.layout import Layout
from worldline.state.tree import materialize, pack, plan
from worldline.v1 import move_pb2

DEADLINE_S = 20.0


class PrivateState:
    """A state tree in ordinary memory, digested like a slot."""

    def __init__(self, model: WorldModel, seed: int = 7) -> None:
        self.model = model
        self.layout: Layout = plan(model.state_spec())
        self.buffer = torch.zeros(self.layout.extent_bytes, dtype=torch.uint8)
        self.tree = cast(StateTree, materialize(self.layout, self.buffer))
        model.initialise(self.tree, seed)

    def block(self, action: Action) -> Frames:
        """Run one block to its end."""
        return run_block(self.model, self.tree, action)

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


def run_block(model: WorldModel, state: StateTree, action: Action) -> Frames:
    run = model.block(state, action)
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
            map_slot, self.server.path, token, self.server.size_bytes, DEADLINE_S
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

    async def register(self, **facts: Any) -> float:
        if self.failure is not None:
            raise self.failure
        self.registered.append(facts["engine_id"])
        return self.lease_ms

    async def renew(
        self, engine_id: str, incarnation: str, profiles: object
    ) -> tuple[float, dict[str, int]]:
        if self.failure is not None:
            raise self.failure
        return self.lease_ms, dict(self.owned)

    async def outcome(self, move_id: str) -> MoveOutcome:
        self.asked.append(move_id)
        return self.outcomes.get(move_id, MoveOutcome())
