"""Decision: must this object's state move, and if so, may it over this path?

The motion criterion first, then condition (1) (paper, section 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from worldline.admissibility.condition import Condition
from worldline.admissibility.motion import Motion, MotionDecision, ServedObject, decide_motion
from worldline.cli.handling import Handling
from worldline.cli.output import human_bytes
from worldline.cli.quantities import human_ms, human_rate
from worldline.verdict import RejectReason, Verdict


@dataclass(frozen=True, slots=True)
class Decision:
    """The criterion's answer; with a verdict exactly where the state must move."""

    motion: MotionDecision
    verdict: Verdict | None

    @property
    def answer(self) -> str:
        """ADMIT or REJECT where it must move, else the escape: REDUCE, REPLAY or RESTART."""
        if self.verdict is None:
            return self.motion.motion.name
        return "REJECT" if self.rejected else "ADMIT"

    @property
    def rejected(self) -> bool:
        """It must move, and may not."""
        return self.verdict is not None and not self.verdict.admitted


def decide(served: ServedObject, handling: Handling, rate_bytes_per_s: float) -> Decision:
    """For one object and one path.

    Raises:
        InvalidInput: a value out of range.
    """
    motion = decide_motion(served)
    if motion.motion is not Motion.MOVE:
        return Decision(motion, None)
    verdict = judge(handling.condition(served.transfer, rate_bytes_per_s))
    if handling.codec is not None:
        state = human_bytes(served.transfer.state_bytes)
        explanation = f"{state} encoded, the codec's time in the set-up: {verdict.explanation}"
        verdict = replace(verdict, explanation=explanation)
    return Decision(motion, verdict)


def judge(condition: Condition) -> Verdict:
    """Condition (1) as a verdict, with what would do where it rejects."""
    numbers = condition.numbers()
    if condition.admissible:
        return Verdict.admit(f"{_takes(condition)}; {_flux(condition)}", numbers)
    if not condition.in_time:
        return Verdict.reject(
            RejectReason.HORIZON_TOO_SHORT,
            f"{_takes(condition)}; a longer horizon, a smaller state or a faster path would do",
            numbers,
        )
    would_do = "freeze the source, or" if condition.frozen.admissible else "only"
    return Verdict.reject(
        RejectReason.BANDWIDTH_TOO_LOW,
        f"{_takes(condition)}, but {_flux(condition)}; {would_do} a faster path would do",
        numbers,
    )


def _takes(condition: Condition) -> str:
    """Both terms of T_migrate beside their sum, so that a reader can add them up."""
    transfer, path = condition.transfer, condition.path
    wire_ms = condition.t_migrate_ms - path.setup_ms
    relation = "within" if condition.in_time else "not within"
    return (
        f"{human_bytes(transfer.state_bytes)}: {path.setup_ms:.1f} ms set-up + {wire_ms:.1f} ms "
        f"at {human_rate(path.rate_bytes_per_s)} = {condition.t_migrate_ms:.1f} ms, {relation} "
        f"the horizon of {human_ms(transfer.horizon_ms)}"
    )


def _flux(condition: Condition) -> str:
    verb = "reaches" if condition.outruns_dirtying else "stays below"
    gate = human_rate(condition.transfer.required_rate_bytes_per_s)
    return f"{human_rate(condition.path.rate_bytes_per_s)} {verb} the gate S/H + D = {gate}"
