"""Device: may this session start here? Slot, state, and time within each period.

Paper, section 5: a candidate is admitted iff its measured quantum, its resident state and the
guard band all fit the declared contract, from the deployment's own profile rows. The quality
floor gives no credit here: every quantum of a block is charged, so that what is admitted fits
without anybody being degraded.
"""

from __future__ import annotations

from services.admission.policy import Policy
from services.admission.requests import SessionRequest
from worldline.verdict import RejectReason, Verdict


def decide_session(request: SessionRequest, policy: Policy) -> Verdict:
    """State fits slot, a slot is free, and the period has room for the block; in that order."""
    device = request.device
    numbers = {
        "state_bytes": float(request.state_bytes),
        "slot_bytes": float(device.slot_bytes),
        "slots_total": float(device.slots_total),
        "slots_used": float(device.slots_used),
        "guard_band": policy.guard_band,
        "utilization": device.utilization,
    }
    if request.state_bytes > device.slot_bytes:
        return Verdict.reject(
            RejectReason.STATE_TOO_LARGE,
            f"the state's {request.state_bytes} bytes do not fit a slot of {device.slot_bytes} "
            f"on {device.engine_id}; start its mover with larger slots",
            numbers,
        )
    if device.slots_used >= device.slots_total:
        return Verdict.reject(
            RejectReason.DEVICE_FULL,
            f"all {device.slots_total} slots of {device.engine_id} are in use",
            numbers,
            retry_after_ms=policy.device_retry_ms,
        )
    return _decide_period(request, policy, numbers)


def _decide_period(request: SessionRequest, policy: Policy, numbers: dict[str, float]) -> Verdict:
    device, period_ms = request.device, request.contract.period_ms
    if period_ms == 0:
        return Verdict.admit(
            f"{device.engine_id} has a free slot; the client paces the world, so no period has "
            "to fit",
            numbers,
        )
    numbers = {**numbers, "period_ms": period_ms}
    if device.quantum_ms == 0 or device.quanta_per_block == 0:
        return Verdict.admit(
            f"{device.engine_id} has a free slot; its quantum is unmeasured for this shape, so "
            f"that a block fits a period of {period_ms:g} ms is assumed, not known",
            numbers,
        )
    block_ms = device.quantum_ms * device.quanta_per_block
    wanted = device.utilization + block_ms / period_ms
    limit = 1.0 - policy.guard_band
    numbers |= {
        "quantum_ms": device.quantum_ms,
        "quanta_per_block": float(device.quanta_per_block),
        "block_ms": block_ms,
        "utilization_wanted": wanted,
        "utilization_max": limit,
    }
    if wanted <= limit:
        return Verdict.admit(
            f"{device.engine_id} generates a block in {block_ms:.1f} of {period_ms:g} ms and "
            f"would be {wanted:.0%} busy, at most {limit:.0%} is allowed",
            numbers,
        )
    alone = block_ms / period_ms > limit
    return Verdict.reject(
        RejectReason.DEVICE_OVERCOMMITTED,
        f"{device.engine_id} would be {wanted:.0%} busy, more than the {limit:.0%} allowed: a "
        f"block takes {block_ms:.1f} of its period of {period_ms:g} ms and "
        f"{device.utilization:.0%} is taken"
        + ("; this device is too slow for that period even when empty" if alone else ""),
        numbers,
        # Where the device is too slow when empty, waiting changes nothing.
        retry_after_ms=0 if alone else policy.device_retry_ms,
    )
