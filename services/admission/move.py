"""Move: may this move start now? The tests, in order: path measured, condition (1), receiver
fan-in, sender, duplex pair. The first that fails is the answer.

The order puts what waiting cannot cure before what it can. Caps and duplex rule: paper,
section 6.3; the condition: section 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.admission.holds import HoldBook, retry_after_ms
from services.admission.paths import age_ms
from services.admission.policy import Policy
from services.admission.requests import MoveRequest
from worldline.admissibility.condition import Condition, Transfer
from worldline.admissibility.path_rate import PathRate
from worldline.contract import Contract
from worldline.errors import InvariantBroken
from worldline.ticket import MovePurpose
from worldline.verdict import RejectReason, Verdict

#: Until a path has this many samples, a reject that only the charged deviation causes is put
#: down to too few measurements: the next ones may settle it (after 8 samples of one value the
#: deviation is an eighth of the first one's).
SAMPLES_SETTLED = 8


@dataclass(frozen=True, slots=True)
class MoveDecision:
    """The verdict, and what the move is predicted to take."""

    verdict: Verdict
    #: On the wire and in verification: what a lease is made for.
    transfer_ms: float
    #: The whole move, as far as it was measured.
    move_ms: float


def decide_move(
    request: MoveRequest, path: PathRate | None, holds: HoldBook, policy: Policy, now_s: float
) -> MoveDecision:
    """Decide on current holds and estimates; expired holds must be gone from the book.

    A probe needs no measured path and has no horizon, but obeys every cap.
    """
    fresh = path if path is not None and age_ms(path, now_s) <= policy.path_age_max_ms else None
    numbers = _path_numbers(request, path, now_s) | _hold_numbers(request, holds, policy)
    verdict: Verdict | None = None
    if request.purpose is MovePurpose.SESSION:
        if fresh is None:
            verdict = _unmeasured(request, path, holds, numbers, policy, now_s)
        else:
            condition = Condition(_transfer(request), fresh.charged_cost)
            numbers |= condition.numbers()
            verdict = _decide_condition(request, condition, fresh, numbers, policy, now_s)
    if verdict is None:
        verdict = _decide_caps(request, holds, numbers, policy, now_s)
    if verdict is None:
        verdict = Verdict.admit(_admit_text(request, numbers), numbers)
    return MoveDecision(verdict, *_predicted_ms(request, fresh, policy))


def _transfer(request: MoveRequest) -> Transfer:
    contract: Contract | None = request.contract
    if contract is None:
        raise InvariantBroken(f"move {request.move_id} has no contract")
    return Transfer(
        state_bytes=request.extent_bytes,
        horizon_ms=contract.horizon_ms,
        dirty_rate_bytes_per_s=request.dirty_rate_bytes_per_s,
    )


def _path_numbers(request: MoveRequest, path: PathRate | None, now_s: float) -> dict[str, float]:
    numbers = {"state_bytes": float(request.extent_bytes), "path_samples": 0.0}
    if path is not None:
        numbers["path_samples"] = float(path.samples)
        numbers["path_age_ms"] = age_ms(path, now_s)
        numbers["rate_bytes_per_s"] = path.charged_cost.rate_bytes_per_s
        numbers["rate_mean_bytes_per_s"] = path.mean_cost.rate_bytes_per_s
    return numbers


def _hold_numbers(request: MoveRequest, holds: HoldBook, policy: Policy) -> dict[str, float]:
    source, target = request.source_node_id, request.target_node_id
    return {
        "moves_into_receiver": float(len(holds.into(target))),
        "fan_in_max": float(policy.fan_in_max),
        "moves_out_of_sender": float(len(holds.out_of(source))),
        "fan_out_max": float(policy.fan_out_max),
        "moves_in_opposite_direction": float(len(holds.between(target, source))),
    }


def _unmeasured(
    request: MoveRequest,
    path: PathRate | None,
    holds: HoldBook,
    numbers: dict[str, float],
    policy: Policy,
    now_s: float,
) -> Verdict:
    route = f"the path from {request.source_node_id} to {request.target_node_id}"
    if path is None:
        why = f"{route} has never been measured, and an advertised speed is not believed"
    else:
        why = f"{route} was last measured {age_ms(path, now_s) / 1e3:.0f} s ago"
    return Verdict.reject(
        RejectReason.PATH_UNMEASURED,
        f"{why}; measure it with a probe and ask again",
        numbers,
        retry_after_ms=_probe_retry_ms(request, holds, policy, now_s),
    )


def _probe_retry_ms(request: MoveRequest, holds: HoldBook, policy: Policy, now_s: float) -> int:
    """When a probe that already runs on this path should be over, else what one takes."""
    probing = [
        hold
        for hold in holds.between(request.source_node_id, request.target_node_id)
        if hold.claims.purpose is MovePurpose.PROBE
    ]
    return retry_after_ms(probing, 1, now_s) if probing else policy.probe_retry_ms


def _decide_condition(
    request: MoveRequest,
    condition: Condition,
    path: PathRate,
    numbers: dict[str, float],
    policy: Policy,
    now_s: float,
) -> Verdict | None:
    """Condition (1) on charged values; None where it holds."""
    if condition.admissible:
        return None
    in_doubt = Condition(condition.transfer, path.mean_cost).admissible
    if in_doubt and path.samples < SAMPLES_SETTLED:
        return Verdict.reject(
            RejectReason.PATH_UNMEASURED,
            f"the path from {request.source_node_id} to {request.target_node_id} has "
            f"{path.samples} of the {SAMPLES_SETTLED} measurements that would settle it "
            f"({_takes(condition)}); measure it again and ask again",
            numbers,
            retry_after_ms=policy.probe_retry_ms,
        )
    # Rejected moves teach nothing, so an estimate that alone stands in the way is believed only
    # until it has aged out and is measured again.
    left_ms = policy.path_age_max_ms - age_ms(path, now_s)
    retry_ms = max(1, round(left_ms)) if in_doubt else 0
    if not condition.in_time:
        return Verdict.reject(
            RejectReason.HORIZON_TOO_SHORT,
            f"{_takes(condition)}; a longer horizon, a smaller state or a faster path would do",
            numbers,
            retry_after_ms=retry_ms,
        )
    return Verdict.reject(
        RejectReason.BANDWIDTH_TOO_LOW,
        f"{condition.path.rate_bytes_per_s:.4g} B/s do not outrun "
        f"{condition.transfer.required_rate_bytes_per_s:.4g} B/s, the state within its horizon "
        "plus what generation rewrites meanwhile; freeze the source or take a faster path",
        numbers,
        retry_after_ms=retry_ms,
    )


def _takes(condition: Condition) -> str:
    relation = "within" if condition.in_time else "not within"
    numbers = condition.numbers()
    return f"{_cost_text(numbers)}, {relation} the horizon of {numbers['horizon_ms']:g} ms"


def _cost_text(numbers: dict[str, float]) -> str:
    """Both terms of T_migrate beside their sum, so that a reader can add them up."""
    rate_bytes_per_s = numbers["rate_bytes_per_s"]
    return (
        f"{numbers['state_bytes'] / 1e6:.2f} MB: {numbers['setup_ms']:.1f} ms set-up + "
        f"{numbers['state_bytes'] / rate_bytes_per_s * 1e3:.1f} ms at "
        f"{rate_bytes_per_s / 1e6:.5g} MB/s = {numbers['t_migrate_ms']:.1f} ms"
    )


def _decide_caps(
    request: MoveRequest,
    holds: HoldBook,
    numbers: dict[str, float],
    policy: Policy,
    now_s: float,
) -> Verdict | None:
    """Receiver, sender, pair; None where none is in the way."""
    source, target = request.source_node_id, request.target_node_id
    into, out_of = holds.into(target), holds.out_of(source)
    if len(into) >= policy.fan_in_max:
        return Verdict.reject(
            RejectReason.RECEIVER_BUSY,
            f"{target} receives {len(into)} of at most {policy.fan_in_max} moves",
            numbers,
            retry_after_ms=retry_after_ms(into, len(into) - policy.fan_in_max + 1, now_s),
        )
    if len(out_of) >= policy.fan_out_max:
        return Verdict.reject(
            RejectReason.SENDER_BUSY,
            f"{source} sends {len(out_of)} of at most {policy.fan_out_max} moves",
            numbers,
            retry_after_ms=retry_after_ms(out_of, len(out_of) - policy.fan_out_max + 1, now_s),
        )
    opposite = holds.between(target, source)
    if opposite:
        return Verdict.reject(
            RejectReason.DUPLEX_PAIR,
            f"a move from {target} to {source} is under way, and of two opposite moves one starves",
            numbers,
            retry_after_ms=retry_after_ms(opposite, len(opposite), now_s),
        )
    return None


def _admit_text(request: MoveRequest, numbers: dict[str, float]) -> str:
    if request.purpose is MovePurpose.PROBE:
        return (
            f"{request.extent_bytes} bytes may measure the path from {request.source_node_id} "
            f"to {request.target_node_id}"
        )
    return f"{_cost_text(numbers)}, within the horizon of {numbers['horizon_ms']:g} ms"


def _predicted_ms(
    request: MoveRequest, path: PathRate | None, policy: Policy
) -> tuple[float, float]:
    if path is None:
        transfer_ms = request.extent_bytes / policy.unmeasured_rate_bytes_per_s * 1e3
        return transfer_ms, transfer_ms
    transfer_ms = path.expected_transfer_ms(request.extent_bytes)
    return transfer_ms, path.mean_cost.t_migrate_ms(request.extent_bytes)
