"""Park bench: one mover with a live slot, and the calls that placement makes to park it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.mover.slots import SlotRole
from tests.unit.mover.cluster import (
    Cluster,
    Node,
    layout_of,
)
from worldline.rpc.channel import call
from worldline.state.codec import manifest_to_proto
from worldline.state.layout import Layout
from worldline.v1 import move_pb2, mover_pb2, park_pb2

KINDS = ("MEMORY", "FILE")
SESSION = "session-1"


def flip_in(path: Path, offset_bytes: int, bit: int) -> None:
    """Change one bit of a file and nothing beside it."""
    with path.open("r+b", buffering=0) as file:
        file.seek(offset_bytes)
        byte = file.read(1)[0]
        file.seek(offset_bytes)
        file.write(bytes([byte ^ (1 << bit)]))


@dataclass
class Bench:
    """One mover with a live slot of noise, and the calls that placement would make."""

    cluster: Cluster
    kind: str
    directory: Path
    layout: Layout = field(default_factory=layout_of)

    @property
    def node(self) -> Node:
        return self.cluster.nodes["a"]

    async def park(self, slot: move_pb2.SlotRef, **changes: Any) -> park_pb2.ParkResponse:
        values = {
            "park_id": "park-1",
            "manifest": manifest_to_proto(self.cluster.manifest(self.layout)),
            "slot": slot,
            "kind": f"PARK_KIND_{self.kind}",
        }
        request = park_pb2.ParkRequest(**{**values, **changes})
        return await call(self.node.stub.Park, request, timeout_s=60)

    async def unpark(self, **changes: Any) -> park_pb2.UnparkResponse:
        request = park_pb2.UnparkRequest(**{"park_id": "park-1", "session_id": SESSION, **changes})
        return await call(self.node.stub.Unpark, request, timeout_s=60)

    async def drop(self, **changes: Any) -> bool:
        request = park_pb2.DropParkedRequest(
            **{"park_id": "park-1", "session_id": SESSION, **changes}
        )
        return bool((await call(self.node.stub.DropParked, request, timeout_s=60)).dropped)

    async def listed(self) -> list[park_pb2.ParkedCopy]:
        request = mover_pb2.DescribeMoverRequest()
        return list((await call(self.node.stub.DescribeMover, request, timeout_s=60)).parked)

    async def live(self) -> move_pb2.SlotRef:
        return await self.cluster.live_slot(self.layout)

    async def parked(self) -> bytes:
        """A copy of a slot that is released; what was in it."""
        slot = await self.live()
        data = self.bytes_of(slot)
        await self.park(slot)
        assert await self.cluster.release("a", slot)
        return data

    def bytes_of(self, slot: move_pb2.SlotRef) -> bytes:
        return bytes(self.cluster.view("a", slot)[: self.layout.extent_bytes])

    def flip(self, offset_bytes: int, bit: int = 3) -> None:
        """Change a bit of the resting copy."""
        if self.kind == "MEMORY":
            view = self.node.runtime.parking._buffers["park-1"][0].view
            view[offset_bytes] ^= 1 << bit
            return
        flip_in(self.directory / "a/park-1/state", offset_bytes, bit)

    def roles(self) -> list[SlotRole]:
        return [state.role for state in self.node.runtime.slots.states()]

    def check_idle(self) -> None:
        """No pin, no thread at work, no reader: only what is meant to be kept."""
        assert all(state.pins == 0 for state in self.node.runtime.slots.states())
        assert not self.node.runtime.parking._making
        assert all(entry.readers == 0 for entry in self.node.runtime.parking.book.entries())
