"""Motion: must this object's state move, or is one of three escapes open?

Paper, section 4.1, the motion criterion: state must move exactly when no contract-preserving
reduction serves, reconstruction exceeds the horizon, and the trajectory itself carries the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from worldline.admissibility.bounds import DURATION_MS_MAX, check_state_bytes
from worldline.admissibility.condition import Transfer
from worldline.errors import InvalidInput
from worldline.fields import positive, whole


class Motion(Enum):
    """What elasticity does with an object: moves its state, or takes the escape that is open."""

    MOVE = "move"
    REDUCE = "reduce"
    REPLAY = "replay"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class ServedObject:
    """What the criterion asks of an object.

    `reduced_bytes` is the least that the target must hold for the contract to be kept, None where
    that is the whole state; a lossless codec reduces nothing, because it delivers the whole state.
    `replay_step_ms` is the time of one step in a replay at the target, over `history_steps` steps
    so far; None where a replay there does not give the same state (across architectures, or
    without its inputs). `trajectory_valued` says whether a restart would lose anything.

    Raises:
        InvalidInput: a value out of range, or a reduction to the whole state or more; `field` is
            its name.
    """

    transfer: Transfer
    reduced_bytes: int | None = None
    history_steps: int = 0
    replay_step_ms: float | None = None
    trajectory_valued: bool = True

    def __post_init__(self) -> None:
        if self.reduced_bytes is not None:
            check_state_bytes(self.reduced_bytes, "reduced_bytes")
            if self.reduced_bytes >= self.transfer.state_bytes:
                raise InvalidInput(
                    f"a reduction to {self.reduced_bytes} of {self.transfer.state_bytes} bytes "
                    "reduces nothing; leave it out",
                    field="reduced_bytes",
                )
        whole(self.history_steps, "history_steps")
        if self.replay_step_ms is not None:
            positive(self.replay_step_ms, "replay_step_ms", at_most=DURATION_MS_MAX)
        if not isinstance(self.trajectory_valued, bool):
            raise InvalidInput("trajectory_valued must be true or false", field="trajectory_valued")

    @property
    def replay_ms(self) -> float | None:
        """Time to rebuild the state from its history; None where a replay cannot."""
        return None if self.replay_step_ms is None else self.history_steps * self.replay_step_ms

    @property
    def escapes(self) -> tuple[Motion, ...]:
        """The escapes that are open, in the order of the criterion; none where it must move.

        As printed, a replay is no escape once it *exceeds* the horizon.
        """
        replay_ms = self.replay_ms
        replay_in_time = replay_ms is not None and replay_ms <= self.transfer.horizon_ms
        candidates = (
            (Motion.REDUCE, self.reduced_bytes is not None),
            (Motion.REPLAY, replay_in_time),
            (Motion.RESTART, not self.trajectory_valued),
        )
        return tuple(escape for escape, is_open in candidates if is_open)


@dataclass(frozen=True, slots=True)
class MotionDecision:
    """The answer, why, every escape that was open, and the numbers (their unit last)."""

    motion: Motion
    reason: str
    escapes: tuple[Motion, ...]
    numbers: Mapping[str, float] = field(hash=False)


def decide_motion(served: ServedObject) -> MotionDecision:
    """The motion criterion: the first escape that is open, else MOVE.

    Where it must move, `required_rate_bytes_per_s` is the deadline gate that then decides
    (equations 1 and 2).
    """
    escapes = served.escapes
    motion = escapes[0] if escapes else Motion.MOVE
    return MotionDecision(motion, _reason(served, motion), escapes, _numbers(served))


def _reason(served: ServedObject, motion: Motion) -> str:
    transfer, replay_ms = served.transfer, served.replay_ms
    if motion is Motion.REDUCE:
        return (
            f"the contract is kept with {served.reduced_bytes} of {transfer.state_bytes} bytes "
            "at the target"
        )
    if motion is Motion.REPLAY:
        return (
            f"a replay up to step {served.history_steps} takes {replay_ms:g} ms, within the "
            f"horizon of {transfer.horizon_ms:g} ms"
        )
    if motion is Motion.RESTART:
        return "the trajectory carries no value, so a restart loses nothing"
    replay = (
        "a replay does not give the same state"
        if replay_ms is None
        else f"a replay up to step {served.history_steps} takes {replay_ms:g} ms, more than the "
        f"horizon of {transfer.horizon_ms:g} ms"
    )
    return (
        f"no reduction keeps the contract, {replay}, and a restart loses the trajectory: "
        f"{transfer.state_bytes} bytes must move"
    )


def _numbers(served: ServedObject) -> dict[str, float]:
    transfer = served.transfer
    numbers = {
        "state_bytes": float(transfer.state_bytes),
        "horizon_ms": transfer.horizon_ms,
        "dirty_rate_bytes_per_s": transfer.dirty_rate_bytes_per_s,
        "required_rate_bytes_per_s": transfer.required_rate_bytes_per_s,
        "history_steps": float(served.history_steps),
    }
    if served.reduced_bytes is not None:
        numbers["reduced_bytes"] = float(served.reduced_bytes)
    if served.replay_step_ms is not None and served.replay_ms is not None:
        numbers["replay_step_ms"] = served.replay_step_ms
        numbers["replay_ms"] = served.replay_ms
    return numbers
