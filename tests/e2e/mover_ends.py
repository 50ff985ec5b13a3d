"""Mover ends: two or more mover processes, and the part of placement that a test plays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.e2e.slots import slot_map
from tests.mover_pair import CALL_S, MoverNode
from tests.oracles import until
from tests.unit.mover.cluster import MEBIBYTE, Cluster
from worldline.rpc.channel import call
from worldline.rpc.push import PushCall
from worldline.state.layout import Layout
from worldline.v1 import move_pb2, mover_pb2

SESSION = "session-1"


@dataclass
class Move:
    """A push that was ordered, and what it is for."""

    ticket: Any
    reserved: mover_pb2.ReserveResponse
    session_id: str = SESSION


@dataclass
class Ends:
    """A state of noise, and the processes between which it moves."""

    movers: Cluster
    layout: Layout

    def __post_init__(self) -> None:
        self.data = np.random.default_rng(3).bytes(self.layout.extent_bytes)

    def node(self, name: str) -> MoverNode:
        node: Any = self.movers.nodes[name]
        assert isinstance(node, MoverNode)
        return node

    async def describe(self, name: str) -> mover_pb2.DescribeMoverResponse:
        answer: mover_pb2.DescribeMoverResponse = await call(
            self.node(name).stub.DescribeMover, mover_pb2.DescribeMoverRequest(), timeout_s=CALL_S
        )
        return answer

    async def live(self, name: str, session_id: str = SESSION) -> move_pb2.SlotRef:
        """A LIVE slot of zeros."""
        request = mover_pb2.AllocateRequest(
            session_id=session_id, extent_bytes=self.layout.extent_bytes
        )
        slot: move_pb2.SlotRef = (
            await call(self.node(name).stub.Allocate, request, timeout_s=CALL_S)
        ).slot
        return slot

    async def filled(self, name: str, session_id: str = SESSION) -> move_pb2.SlotRef:
        """A LIVE slot that holds the state."""
        slot = await self.live(name, session_id)
        with await slot_map(self.node(name).process, session_id) as memory:
            memory[: len(self.data)] = self.data
        return slot

    async def bytes_of(self, name: str, session_id: str = SESSION) -> bytes:
        """What the slot of the session holds."""
        with await slot_map(self.node(name).process, session_id) as memory:
            return memory[: self.layout.extent_bytes]

    def between(self, source: str, target: str) -> Cluster:
        """The movers in the parts of `a` and `b`."""
        nodes = {"a": self.movers.nodes[source], "b": self.movers.nodes[target]}
        return Cluster(self.movers.admission, nodes, self.movers.numbers)

    async def reserve(self, source: str, target: str, **claims: Any) -> Move:
        values = {
            "source_node_id": source,
            "target_node_id": target,
            "valid_for_ms": 240_000,
            "lease_ms": 60_000,
        }
        ticket = self.movers.ticket(self.layout, **{**values, **claims})
        reserved = await self.between(source, target).reserve(ticket, self.layout)
        return Move(ticket, reserved, claims.get("session_id", SESSION))

    def push_call(self, source: str, target: str, move: Move, slot: move_pb2.SlotRef) -> PushCall:
        """The push of a move, to be armed and let go by hand."""
        order = self.between(source, target).order(
            move.ticket,
            self.movers.manifest(self.layout, session_id=move.session_id),
            move.reserved.reservation_id,
            slot,
            chunk_bytes=MEBIBYTE,
            window_chunks=1,
        )
        return PushCall(self.node(source).stub, order, 250)

    async def push(
        self, source: str, target: str, move: Move, slot: move_pb2.SlotRef, **changes: Any
    ) -> mover_pb2.PushOutcome:
        outcome, _ = await self.between(source, target).push(
            move.ticket,
            self.movers.manifest(self.layout, session_id=move.session_id),
            move.reserved.reservation_id,
            slot,
            timeout_s=250,
            **{"chunk_bytes": MEBIBYTE, "window_chunks": 1, **changes},
        )
        return outcome

    async def hop(
        self, source: str, target: str, slot: move_pb2.SlotRef, **changes: Any
    ) -> move_pb2.SlotRef:
        """A whole move, source released; the target's LIVE slot."""
        pair = self.between(source, target)
        move = await self.reserve(source, target)
        outcome = await self.push(source, target, move, slot, **changes)
        assert outcome.digests == outcome.receipt.digests
        await pair.promote(move.reserved.reservation_id, move.reserved.slot)
        assert await pair.release("a", slot)
        return move.reserved.slot

    async def wires(self, name: str) -> dict[str, tuple[str, bool]]:
        """Who holds a wire of the node (true) or waits for one, by the ticket's id; from where."""
        answer = await self.describe(name)
        return {wire.ticket_id: (wire.source_node_id, wire.held) for wire in answer.wires}

    async def until_wires(self, name: str, *, held: str, waiting: str) -> None:
        """Until moves from exactly these sources hold the node's ingress, and wait for it."""

        async def complaints() -> list[str]:
            found = sorted((await self.wires(name)).values())
            wanted = sorted([(each, True) for each in held] + [(each, False) for each in waiting])
            return [] if found == wanted else [f"{name}: {found}, not {wanted}"]

        await until(complaints)

    async def until_free(self, name: str, within_s: float, *, occupied: int = 0) -> None:
        """Until all slots but so many are FREE, and nothing is under way."""

        async def complaints() -> list[str]:
            answer = await self.describe(name)
            used = [each for each in answer.slots if each.role != move_pb2.SLOT_ROLE_FREE]
            found = [] if len(used) == occupied else [f"{name}: {each}" for each in used]
            for what in (
                "reservations",
                "landings",
                "endpoints",
                "requests_outstanding",
                "wires_held",
                "wires_waiting",
            ):
                count = answer.census.counts[what]
                found += [f"{name}: {count} {what}"] if count else []
            return found

        await until(complaints, within_s)
