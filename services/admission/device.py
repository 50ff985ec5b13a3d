"""Device: may this session start here? Slot, state, and time within each period.

Paper, section 5: a candidate is admitted iff its measured quantum, its resident state and the
guard band all fit the declared contract, from the deployment's own profile rows and at the
session's quality floor. The arithmetic is `SessionFit`'s and nobody else's; here a device's slots
and rows become what it reckons with, and its answer becomes a verdict.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.admission.policy import Policy
from services.admission.requests import SessionRequest
from worldline.admissibility.device_profile import DeviceProfile
from worldline.admissibility.profile_row import ProfileRow, RequestShape
from worldline.admissibility.sessions import SessionDemand, SessionFit
from worldline.verdict import RejectReason, Verdict


@dataclass(frozen=True, slots=True)
class SessionDecision:
    """The verdict; where it is QUANTUM_UNMEASURED, the shapes whose rows are missing or too old."""

    verdict: Verdict
    unmeasured: tuple[RequestShape, ...] = ()


def decide_session(request: SessionRequest, policy: Policy) -> SessionDecision:
    """State fits slot, a slot is free, the rows are there, and every period is kept; in that order.

    A session without a period needs no row, and is held against nobody's.
    """
    no = _without_slot(request, policy)
    if no is not None:
        return SessionDecision(no)
    rows = _believed(request, policy)
    unmeasured = tuple(shape for shape in _wanted(request) if shape.name not in rows)
    if unmeasured:
        return SessionDecision(_unmeasured(request, policy, unmeasured), unmeasured)
    return SessionDecision(_decide_fit(request, policy, _fit(request, policy, rows)))


def _without_slot(request: SessionRequest, policy: Policy) -> Verdict | None:
    device = request.device
    if request.state_bytes > device.slot_bytes:
        return Verdict.reject(
            RejectReason.STATE_TOO_LARGE,
            f"the state's {request.state_bytes} bytes do not fit a slot of {device.slot_bytes} "
            f"on {device.engine_id}; start its mover with larger slots",
            _slots(request),
        )
    if device.slots_used >= device.slots_total:
        return Verdict.reject(
            RejectReason.DEVICE_FULL,
            f"all {device.slots_total} slots of {device.engine_id} are in use",
            _slots(request),
            retry_after_ms=policy.device_retry_ms,
        )
    return None


def _slots(request: SessionRequest) -> dict[str, float]:
    device = request.device
    return {
        "state_bytes": float(request.state_bytes),
        "slot_bytes": float(device.slot_bytes),
        "slots_total": float(device.slots_total),
        "slots_used": float(device.slots_used),
    }


def _wanted(request: SessionRequest) -> list[RequestShape]:
    """Shapes that the decision cannot do without: the candidate's, and of whoever it may delay."""
    if not request.has_period:
        return []
    residents = (resident.shape for resident in request.device.residents)
    return list(dict.fromkeys((request.shape, *residents)))


def _believed(request: SessionRequest, policy: Policy) -> dict[str, ProfileRow]:
    rows = request.device.rows
    return {row.shape.name: row for row in rows if row.believed(policy.row_age_max_ms)}


def _unmeasured(
    request: SessionRequest, policy: Policy, shapes: tuple[RequestShape, ...]
) -> Verdict:
    names = ", ".join(shape.name for shape in shapes)
    aged = {row.shape: row.age_ms for row in request.device.rows if row.shape in shapes}
    old = f"; measured {min(aged.values()) / 1e3:.0f} s ago, too long" if aged else ""
    return Verdict.reject(
        RejectReason.QUANTUM_UNMEASURED,
        f"what a quantum of {names} takes on {request.device.engine_id} is not known{old}; a "
        f"period of {request.contract.period_ms:g} ms is promised from measured rows alone",
        {
            **_slots(request),
            "period_ms": request.contract.period_ms,
            "shapes_unmeasured": float(len(shapes)),
            "row_age_max_ms": policy.row_age_max_ms,
            **({"row_age_ms": min(aged.values())} if aged else {}),
        },
        retry_after_ms=policy.device_retry_ms,
    )


def _fit(request: SessionRequest, policy: Policy, rows: dict[str, ProfileRow]) -> SessionFit:
    """A device's memory is its slots: whoever is there takes a whole one."""
    device = request.device
    residents = device.residents if request.has_period else ()
    return SessionFit(
        candidate=SessionDemand(request.shape.name, device.slot_bytes, request.contract),
        residents=tuple(
            SessionDemand(one.shape.name, device.slot_bytes, one.contract) for one in residents
        ),
        device=DeviceProfile(
            memory_bytes=device.slots_total * device.slot_bytes,
            guard_band=policy.guard_band,
            shapes={name: row.charge for name, row in rows.items()},
        ),
        taken_bytes=max(0, device.slots_used - len(residents)) * device.slot_bytes,
    )


def _decide_fit(request: SessionRequest, policy: Policy, fit: SessionFit) -> Verdict:
    engine_id = request.device.engine_id
    numbers = {**fit.numbers(), **_slots(request)}
    if fit.reason is RejectReason.DEVICE_FULL:
        return Verdict.reject(
            RejectReason.DEVICE_FULL,
            f"{engine_id} has more sessions on their way than slots",
            numbers,
            retry_after_ms=policy.device_retry_ms,
        )
    if not request.has_period:
        return Verdict.admit(
            f"{engine_id} has a free slot; the client paces the world, so no period has to fit",
            numbers,
        )
    steps = "1 step" if numbers["steps"] == 1 else f"{numbers['steps']:.0f} steps"
    block = f"a block of {steps} takes {numbers['block_ms']:.1f} of {numbers['period_ms']:g} ms"
    busy = f"{fit.utilization_wanted:.0%} busy, at most {fit.utilization_max:.0%} is allowed"
    if fit.reason is None:
        return Verdict.admit(f"{engine_id} would be {busy}: {block}", numbers)
    alone = numbers["utilization_alone"] > fit.utilization_max
    slow = "; this device is too slow for that period even when empty" if alone else ""
    return Verdict.reject(
        RejectReason.DEVICE_OVERCOMMITTED,
        f"{engine_id} would be {busy}: {block}{slow}",
        numbers,
        # Where the device is too slow when empty, waiting changes nothing.
        retry_after_ms=0 if alone else policy.device_retry_ms,
    )
