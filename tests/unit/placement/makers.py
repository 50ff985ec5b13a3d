"""Makers of domain values for the tests of placement."""

from __future__ import annotations

from services.placement.choose import Candidate
from services.placement.device import DeviceRecord, Place
from services.placement.move import Move
from services.placement.phases import Goal
from services.placement.records import (
    EngineRecord,
    MoveEntry,
    NodeRecord,
    SessionRecord,
    SessionState,
    WorldKind,
)
from services.placement.values import Party, SlotName
from worldline.contract import Contract, ServiceClass
from worldline.state.manifest import Fingerprint

EQUAL = Fingerprint.of({"torch": "2.13.0", "weights": "w", "engine_code": "c"})
OTHER_TORCH = Fingerprint.of({"torch": "2.12.0", "weights": "w", "engine_code": "c"})
OTHER_WEIGHTS = Fingerprint.of({"torch": "2.13.0", "weights": "v", "engine_code": "c"})


def contract(**changes: object) -> Contract:
    return Contract(
        **{"service_class": ServiceClass.C1_INTERACTIVE, "horizon_ms": 400.0, **changes}  # type: ignore[arg-type]
    )


def candidate(name: str, **changes: object) -> Candidate:
    """`slots_for_moves` is `slots_free` where it is not said."""
    free = changes.get("slots_free", 1)
    fields: dict[str, object] = {
        "engine_id": f"e{name}",
        "node_id": f"n{name}",
        "alive": True,
        "slots_free": free,
        "slots_for_moves": free,
        "slots_total": 4,
        "slot_bytes": 1000,
        "fingerprint": EQUAL,
        "place": Place(f"h{name}"),
    }
    return Candidate(**fields | changes)  # type: ignore[arg-type]


def node(name: str, incarnation: str = "j1") -> NodeRecord:
    cpu = DeviceRecord("cpu", 4, 1 << 20)
    return NodeRecord(f"n{name}", f"127.0.0.1:100{name}", incarnation, f"h{name}", (cpu,))


def engine(name: str, incarnation: str = "i1", fingerprint: Fingerprint = EQUAL) -> EngineRecord:
    return EngineRecord(
        f"e{name}", f"n{name}", f"127.0.0.1:200{name}", "cpu", fingerprint, incarnation
    )


def session(**changes: object) -> SessionRecord:
    fields: dict[str, object] = {
        "session_id": "s",
        "owner": "e1",
        "owner_incarnation": "i1",
        "node_id": "n1",
        "epoch": 1,
        "state": SessionState.LIVE,
        "contract": contract(),
        "world": WorldKind("tiny", 2**64 - 1),
        "slot": SlotName("n1", 0, 1),
        "layout": b"layout",
        "topology_hash": b"\1" * 32,
        "extent_bytes": 100,
    }
    return SessionRecord(**fields | changes)  # type: ignore[arg-type]


def entry(move_id: str = "m", session_id: str = "s", **changes: object) -> MoveEntry:
    fields: dict[str, object] = {
        "move_id": move_id,
        "session_id": session_id,
        "source": Party("e1", "i1", "n1", "j1"),
        "target": Party("e2", "i1", "n2", "j1"),
        "source_epoch": 1,
        "goal": Goal.COMMIT,
        "target_slot": SlotName("n2", 3, 9),
    }
    return MoveEntry(move=Move(**fields | changes))  # type: ignore[arg-type]
