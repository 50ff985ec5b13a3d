"""Scene: a fleet, its sessions and the paths that were measured, drawn from a seed.

Four kinds of node, of which a T0 session fits one; four nodes to a host; every session with a
contract and a state of its own. Nothing is idle: two thirds of the slots are taken.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace

from bench.fabric.streams import stream
from services.placement.changes import Changes
from services.placement.choose import Candidate
from services.placement.device import DeviceRecord
from services.placement.fleet import Fleet
from services.placement.move import Move
from services.placement.phases import MovePhase
from services.placement.records import (
    EngineRecord,
    NodeRecord,
    SessionRecord,
    SessionState,
    WorldKind,
)
from services.placement.shortlist import Shortlist
from services.placement.values import SlotName
from worldline.admissibility.profile_row import ProfileRow, QuantumSpread, RequestShape
from worldline.contract import Contract, ServiceClass
from worldline.numa import Binding
from worldline.state.manifest import Fingerprint

KINDS = 4
NODES_PER_HOST = 4
SLOTS_PER_NODE = 15
DEVICE = "cuda:0"
#: Matrix-Game-2's state is 1.67 GB (paper, section 3); others are smaller or larger.
STATES_BYTES = (418_000_000, 1_670_124_960, 1_670_124_960, 4_300_000_000)
SLOT_BYTES = 4_400_000_000
CLIENTS = 64


@dataclass(frozen=True, slots=True)
class Size:
    """How large a fleet."""

    nodes: int = 1_000
    sessions: int = 10_000


class Scene:
    """What placement's directory and leases hold, and its shortlist, kept up as placement keeps it:
    session by session and move by move.
    """

    def __init__(self, size: Size, seed: int) -> None:
        draw = stream(seed, "decisions/scene")
        self.fleet = Fleet(node_lease_ms=10**12, engine_lease_ms=10**12)
        self.shortlist = Shortlist(self.fleet)
        for number in range(size.nodes):
            self.fleet.put_node(_node(number), 0.0)
            self.fleet.put_engine(_engine(number), 0.0)
            row = _row(draw.uniform(20.0, 90.0))
            self.fleet.renew_engine(f"engine-{number:04}", "engine-1", [row], 0.0)
        taken: Counter[int] = Counter()
        self.sessions = {
            one.session_id: one
            for one in (
                _session(number, _room(draw, size, taken), draw) for number in range(size.sessions)
            )
        }
        #: The open ones, by name.
        self.moves: dict[str, Move] = {}
        self.names = list(self.sessions)
        self.node_ids = sorted(self.fleet.nodes)

    def learn(self) -> None:
        """Every session, as after a start of placement."""
        self.shortlist.follow(Changes(1, sessions=tuple(self.sessions.values())))
        self.shortlist.candidates(0.0)

    def counted(self) -> tuple[Candidate, ...]:
        """All candidates from all sessions and moves, as the shortlist is to have them."""
        return self.fleet.candidates(tuple(self.sessions.values()), tuple(self.moves.values()), 0.0)

    def begun(self, move: Move) -> Changes:
        """The directory has a move under way: what changed there."""
        self.moves[move.move_id] = move
        return Changes(1, (self._changed(move.session_id, state=SessionState.MOVING),), (move,))

    def committed(self, move_id: str) -> Changes:
        """The session has another owner, and its slot at the source is free at once."""
        move = self.moves.pop(move_id)
        session = self._changed(
            move.session_id,
            owner=move.target.engine_id,
            node_id=move.target.node_id,
            epoch=move.source_epoch + 1,
            state=SessionState.LIVE,
        )
        return Changes(1, (session,), (replace(move, phase=MovePhase.DONE),))

    def _changed(self, session_id: str, **changes: object) -> SessionRecord:
        changed = replace(self.sessions[session_id], **changes)  # type: ignore[arg-type]
        self.sessions[session_id] = changed
        return changed


def kind_of(node_id: str) -> int:
    """Which of the kinds a node is."""
    return int(node_id.rpartition("-")[2]) % KINDS


def _row(quantum_ms: float) -> ProfileRow:
    spread = QuantumSpread(100, quantum_ms, quantum_ms)
    shape, binding = RequestShape("mg2"), Binding(frozenset(range(16)), 0)
    return ProfileRow(shape, binding, "cuda:0", 4, 3, spread, spread)


def _node(number: int) -> NodeRecord:
    host_id = f"host-{number // NODES_PER_HOST:04}"
    device = DeviceRecord(DEVICE, SLOTS_PER_NODE, SLOT_BYTES, uuid=f"GPU-{number:04}")
    address = f"10.0.{number // 250}.{number % 250 + 1}:7001"
    return NodeRecord(f"node-{number:04}", address, "node-1", host_id, (device,))


def _engine(number: int) -> EngineRecord:
    facts = {"torch": "2.13.0", "weights": "mg2", "engine_code": "1", "gpu": str(number % KINDS)}
    return EngineRecord(
        f"engine-{number:04}",
        f"node-{number:04}",
        f"10.0.{number // 250}.{number % 250 + 1}:7002",
        DEVICE,
        Fingerprint.of(facts),
        "engine-1",
        device_uuid=f"GPU-{number:04}",
    )


def _room(draw: random.Random, size: Size, taken: Counter[int]) -> int:
    """A node with a slot left."""
    while True:
        number = draw.randrange(size.nodes)
        if taken[number] < SLOTS_PER_NODE:
            taken[number] += 1
            return number


def _session(number: int, node: int, draw: random.Random) -> SessionRecord:
    return SessionRecord(
        session_id=f"session-{number:05}",
        owner=f"engine-{node:04}",
        owner_incarnation="engine-1",
        node_id=f"node-{node:04}",
        epoch=1,
        state=SessionState.LIVE,
        contract=_contract(draw),
        world=WorldKind("mg2", number),
        slot=SlotName(f"node-{node:04}", number % SLOTS_PER_NODE, 1),
        layout=b"layout",
        topology_hash=number.to_bytes(32, "big"),
        extent_bytes=draw.choice(STATES_BYTES),
    )


def _contract(draw: random.Random) -> Contract:
    """Most sessions are interactive, as tight as the paper's or half as tight; some are bulk."""
    chance = draw.random()
    if chance < 0.1:
        return Contract(ServiceClass.C3_BULK, horizon_ms=30_000.0)
    horizon_ms = draw.choice((300.0, 400.0, 400.0, 800.0))
    return Contract(ServiceClass.C1_INTERACTIVE, horizon_ms=horizon_ms, period_ms=horizon_ms)
