"""Builders: valid requests with one part changed at a time."""

from __future__ import annotations

import dataclasses
from typing import Any

from services.admission.core import Admission
from services.admission.policy import Policy
from services.admission.requests import (
    DeviceLoad,
    MoveReport,
    MoveRequest,
    MoveTarget,
    Resident,
    SessionRequest,
)
from tests.rows import row
from worldline.admissibility.path_rate import TransferSample
from worldline.contract import Contract, ServiceClass
from worldline.ticket import MovePurpose

STATE_BYTES = 1_670_124_960
GBIT_PER_S = 1e9 / 8
CONTRACT = Contract(ServiceClass.C1_INTERACTIVE, horizon_ms=400.0)
DEVICE = DeviceLoad(
    engine_id="engine-a",
    slots_total=4,
    slots_used=1,
    slot_bytes=STATE_BYTES,
    rows=(row("mg2"),),
)


#: What of a change to a session is its contract's.
_PROMISED = ("period_ms", "quality_floor_steps", "degraded_consecutive_max", "decode_tier")


def session(**changes: Any) -> SessionRequest:
    """A session of MG2's size on the paper's device: what its contract has not, is the device's."""
    promised = {name: changes.pop(name) for name in _PROMISED if name in changes}
    contract = dataclasses.replace(CONTRACT, **{"period_ms": 400.0, **promised})
    state_bytes = changes.pop("state_bytes", STATE_BYTES)
    return SessionRequest("mg2", contract, state_bytes, dataclasses.replace(DEVICE, **changes))


def resident(preset: str = "mg2", **promised: Any) -> Resident:
    """One that the device has already, with a period of 400 ms."""
    return Resident(preset, dataclasses.replace(CONTRACT, **{"period_ms": 400.0, **promised}))


def receiver(node_id: str, **changes: Any) -> MoveTarget:
    """A receiver with room for whatever a test moves there."""
    return MoveTarget(node_id, f"engine-{node_id}", slots_free=100)._replace(**changes)


def move(number: int = 1, source: str = "a", *targets: str, **changes: Any) -> MoveRequest:
    """A frozen move of MG2's size from node `source` to one of the nodes `targets`, or to b."""
    horizon_ms = changes.pop("horizon_ms", 400.0)
    service_class = changes.pop("service_class", CONTRACT.service_class)
    request = MoveRequest(
        move_id=f"move-{number}",
        session_id=f"session-{number}",
        epoch=1,
        contract=dataclasses.replace(CONTRACT, horizon_ms=horizon_ms, service_class=service_class),
        source_node_id=source,
        targets=tuple(receiver(target) for target in targets or ("b",)),
        extent_bytes=STATE_BYTES,
        topology_hash=b"12345678",
        purpose=MovePurpose.SESSION,
    )
    return dataclasses.replace(request, **changes)


def probe(number: int = 1, source: str = "a", target: str = "b", **changes: Any) -> MoveRequest:
    """A probe of 64 MiB, without contract and session."""
    defaults: dict[str, Any] = {
        "purpose": MovePurpose.PROBE,
        "contract": None,
        "session_id": "",
        "extent_bytes": 64 << 20,
        "move_id": f"probe-{number}",
    }
    return dataclasses.replace(move(number, source, target), **(defaults | changes))


def report(request: MoveRequest, **changes: Any) -> MoveReport:
    """The end of that move, without figures, by move id alone."""
    plain = MoveReport(
        ticket_id="",
        move_id=request.move_id,
        sample=None,
        verified=False,
        committed=False,
        reason="",
    )
    return dataclasses.replace(plain, **changes)


def sample(rate_bytes_per_s: float, size_bytes: int = STATE_BYTES) -> TransferSample:
    """A transfer at that rate without set-up."""
    return TransferSample(size_bytes, size_bytes / rate_bytes_per_s * 1e3)


def measured(
    *pairs: tuple[str, str],
    rate: float = 100 * GBIT_PER_S,
    samples: int = 20,
    now_s: float = 0.0,
    **limits: Any,
) -> Admission:
    """An admission that knows the paths of those pairs well."""
    admission = Admission(Policy(**limits))
    for pair in pairs or (("a", "b"),):
        for _ in range(samples):
            admission.paths.teach(pair, sample(rate), now_s, 1e9)
    return admission
