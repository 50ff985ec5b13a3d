"""Two movers and an admission that signs, in one process, over real gRPC."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.mover.runtime import MoverRuntime
from services.mover.servicer import MoverServicer
from services.mover.settings import MoverSettings
from services.mover.slots import SlotRole
from services.mover.transport.base import Transport
from worldline.contract import DeterminismTier
from worldline.rpc.channel import call, open_channel
from worldline.rpc.push import PushCall
from worldline.rpc.server import GrpcServer
from worldline.state.codec import layout_to_proto, manifest_to_proto
from worldline.state.layout import DictNode, Layout, ScalarLeaf, TensorLeaf, TensorNode
from worldline.state.manifest import Fingerprint, Manifest
from worldline.state.node import ScalarNode
from worldline.ticket import MovePurpose, SignedTicket, TicketClaims, TicketSigner, ticket_to_proto
from worldline.v1 import (
    admission_pb2,
    admission_pb2_grpc,
    move_pb2,
    mover_pb2,
    mover_pb2_grpc,
)

MEBIBYTE = 1 << 20
SLOT_BYTES = 24 * MEBIBYTE
#: Three leaves over 10.5 MiB: granule borders fall within leaves, the last granule is short.
LEAF_BYTES = (4 * MEBIBYTE + 5, 6 * MEBIBYTE + 123, 300_001)


def layout_of(sizes: tuple[int, ...] = LEAF_BYTES, step: int = 3) -> Layout:
    """Flat uint8 leaves `leaf[i]`, and one scalar."""
    tensors, offset = [], 0
    for index, size in enumerate(sizes):
        at = offset if size else 0  # an empty leaf lies nowhere
        tensors.append(TensorLeaf(f"leaf{index}", "uint8", (size,), (1,), at, size, 0))
        offset += size
    nodes = [(leaf.path, TensorNode(index)) for index, leaf in enumerate(tensors)]
    root = DictNode((*nodes, ("step", ScalarNode(0))))
    return Layout.build(tensors=tuple(tensors), scalars=(ScalarLeaf("step", step),), root=root)


async def until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    """Wait for a condition that no event announces, with a deadline."""
    async with asyncio.timeout(within_s):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


class _Admission(admission_pb2_grpc.AdmissionServiceServicer):
    def __init__(self, signer: TicketSigner) -> None:
        self.signer = signer
        self.asked = 0
        #: How far admission's clock is from this process's.
        self.clock_ms = 0

    async def GetTicketKey(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked += 1
        return admission_pb2.GetTicketKeyResponse(
            key_id=self.signer.key_id,
            public_key=self.signer.public_key,
            now_ms=round(time.monotonic() * 1e3) + self.clock_ms,
        )


@dataclass
class Node:
    """One mover of the cluster."""

    runtime: MoverRuntime
    server: GrpcServer
    channel: Any

    @property
    def stub(self) -> mover_pb2_grpc.MoverServiceStub:
        return mover_pb2_grpc.MoverServiceStub(self.channel)

    @property
    def address(self) -> str:
        return self.server.address

    def role(self, slot: move_pb2.SlotRef) -> SlotRole:
        return self.runtime.slots.states()[slot.slot_index].role

    async def until_free(self, slot: move_pb2.SlotRef) -> None:
        await until(lambda: self.role(slot) is SlotRole.FREE)

    async def until_quiet(self) -> None:
        await until(lambda: not len(self.runtime.cleaners))

    @contextmanager
    def later(self, by_s: float) -> Iterator[None]:
        """Inside, its clock is so much further: what is due by then is due now."""
        now = self.runtime.now
        self.runtime.now = lambda: now() + by_s  # type: ignore[method-assign]
        self.runtime.wake_reaper()
        try:
            yield
        finally:
            del self.runtime.now


@dataclass
class Cluster:
    """Two movers, `a` and `b`, and the admission they trust."""

    admission: _Admission
    nodes: dict[str, Node]
    numbers: Any = field(default_factory=itertools.count)

    def claims(self, layout: Layout, **changes: Any) -> TicketClaims:
        number = next(self.numbers)
        values: dict[str, Any] = {
            "ticket_id": f"ticket-{number}",
            "move_id": f"move-{number}",
            "session_id": "session-1",
            "epoch": 4,
            "source_node_id": "a",
            "target_node_id": "b",
            "extent_bytes_max": layout.extent_bytes,
            "topology_hash": layout.topology_hash,
            "purpose": MovePurpose.SESSION,
            "issued_at_ms": round(time.monotonic() * 1e3),
            "valid_for_ms": 60_000,
            "lease_ms": 60_000,
        }
        return TicketClaims(**{**values, **changes})

    def sign(self, claims: TicketClaims) -> SignedTicket:
        return self.admission.signer.sign(claims)

    def ticket(self, layout: Layout, **changes: Any) -> SignedTicket:
        return self.sign(self.claims(layout, **changes))

    def manifest(self, layout: Layout, **changes: Any) -> Manifest:
        values: dict[str, Any] = {
            "session_id": "session-1",
            "epoch": 4,
            "block_index": 17,
            "layout": layout,
            "fingerprint": Fingerprint.of({"torch": "2.13"}),
            "determinism_tier": DeterminismTier.T0_BITWISE,
        }
        return Manifest(**{**values, **changes})

    async def live_slot(self, layout: Layout, session_id: str = "session-1") -> move_pb2.SlotRef:
        """A LIVE slot at `a` with noise in it."""
        node = self.nodes["a"]
        answer = await call(
            node.stub.Allocate,
            mover_pb2.AllocateRequest(session_id=session_id, extent_bytes=layout.extent_bytes),
            timeout_s=60,
        )
        data = random.Random(5).randbytes(layout.extent_bytes)
        self.view("a", answer.slot)[: len(data)] = data
        return answer.slot

    def view(self, node_id: str, slot: move_pb2.SlotRef) -> memoryview:
        return self.nodes[node_id].runtime._memories[slot.slot_index].whole

    async def reserve(self, ticket: SignedTicket, layout: Layout) -> mover_pb2.ReserveResponse:
        return await call(
            self.nodes["b"].stub.Reserve,
            mover_pb2.ReserveRequest(
                ticket=ticket_to_proto(ticket), layout=layout_to_proto(layout)
            ),
            timeout_s=60,
        )

    async def push(
        self,
        ticket: SignedTicket,
        manifest: Manifest,
        reservation_id: str,
        slot: move_pb2.SlotRef | None,
        *,
        verification: str = "VERIFICATION_PIPELINED",
        chunk_bytes: int = MEBIBYTE,
        window_chunks: int = 4,
        promote: bool = False,
        timeout_s: float = 100.0,
    ) -> tuple[mover_pb2.PushOutcome, list[int]]:
        """Order and go at once; the outcome, and the bytes sent at each report."""
        order = self.order(
            ticket,
            manifest,
            reservation_id,
            slot,
            verification=verification,
            chunk_bytes=chunk_bytes,
            window_chunks=window_chunks,
            promote=promote,
        )
        call_ = PushCall(self.nodes["a"].stub, order, timeout_s)
        progress: list[int] = []
        try:
            await call_.arm()
            await call_.go(manifest.block_index, manifest.layout)
            return await call_.outcome(progress.append), progress
        finally:
            await call_.close()

    def order(
        self,
        ticket: SignedTicket,
        manifest: Manifest,
        reservation_id: str,
        slot: move_pb2.SlotRef | None,
        **changes: Any,
    ) -> mover_pb2.PushOrder:
        values: dict[str, Any] = {
            "ticket": ticket_to_proto(ticket),
            "session_id": manifest.session_id,
            "epoch": manifest.epoch,
            "layout": layout_to_proto(manifest.layout),
            "source_slot": slot,
            "reservation_id": reservation_id,
            "target_mover_address": self.nodes["b"].address,
            "verification": "VERIFICATION_PIPELINED",
        }
        return mover_pb2.PushOrder(**{**values, **changes})

    async def verify(
        self,
        reservation_id: str,
        manifest: Manifest,
        digests: Any,
        *,
        promote: bool = False,
        landing: bool = False,
    ) -> mover_pb2.VerifyResponse:
        message = manifest_to_proto(manifest)
        if digests is not None:
            message.digests.CopyFrom(digests)
        return await call(
            self.nodes["b"].stub.Verify,
            mover_pb2.VerifyRequest(
                reservation_id=reservation_id, manifest=message, promote=promote, landing=landing
            ),
            timeout_s=60,
        )

    async def promote(self, reservation_id: str, slot: move_pb2.SlotRef) -> None:
        await call(
            self.nodes["b"].stub.Promote,
            mover_pb2.PromoteRequest(reservation_id=reservation_id, slot=slot),
            timeout_s=60,
        )

    async def release(
        self, node_id: str, slot: move_pb2.SlotRef, session_id: str = "session-1"
    ) -> bool:
        answer = await call(
            self.nodes[node_id].stub.Release,
            mover_pb2.ReleaseRequest(slot=slot, session_id=session_id),
            timeout_s=60,
        )
        released: bool = answer.released
        return released


async def start_node(
    stack: AsyncExitStack,
    node_id: str,
    directory: Path,
    admission: str,
    transport: Transport,
    **changes: Any,
) -> Node:
    values: dict[str, Any] = {
        "node_id": node_id,
        "admission_address": admission,
        "slot_count": 2,
        "slot_bytes": SLOT_BYTES,
        "runtime_dir": directory,
    }
    settings = MoverSettings(**{**values, **changes})
    server = GrpcServer()
    server.bind("127.0.0.1:0")
    runtime = MoverRuntime(settings, transport)
    await runtime.start()
    stack.push_async_callback(runtime.stop)
    server.add(
        mover_pb2_grpc.add_MoverServiceServicer_to_server,
        MoverServicer(runtime),
        "worldline.v1.MoverService",
    )
    await server.start()
    stack.push_async_callback(server.stop, 0.2)
    channel = open_channel(server.address)
    stack.push_async_callback(channel.close)
    return Node(runtime, server, channel)


async def start_admission(stack: AsyncExitStack) -> tuple[_Admission, str]:
    servicer = _Admission(TicketSigner.generate())
    server = GrpcServer()
    server.bind("127.0.0.1:0")
    server.add(
        admission_pb2_grpc.add_AdmissionServiceServicer_to_server,
        servicer,
        "worldline.v1.AdmissionService",
    )
    await server.start()
    stack.push_async_callback(server.stop, 0.2)
    return servicer, server.address


def receive_descriptor(path: str, token: bytes) -> tuple[bytes, list[int]]:
    """The client's half of the slot server's protocol; blocking."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(60)
        client.connect(path)
        client.sendall(token)
        answer, descriptors, _, _ = socket.recv_fds(client, 1, 1)
        return answer, descriptors
