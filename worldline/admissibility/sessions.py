"""Sessions: does one more fit this device, in memory and within every period?

Paper, section 5: a deadline-class candidate is admitted iff its measured quantum, the resident
state and the guard band all fit the declared contract, from the deployment's own profile rows and
at the session's quality floor. Quanta are served earliest deadline first and never preempted, so
a session may wait for one quantum of another whose deadline is later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worldline.admissibility.bounds import check_state_bytes
from worldline.admissibility.device_profile import DeviceProfile
from worldline.contract import Contract
from worldline.fields import identifier, whole
from worldline.verdict import RejectReason


@dataclass(frozen=True, slots=True)
class SessionDemand:
    """What one session asks of a device: its request shape, resident state and contract.

    Raises:
        InvalidInput: a value out of range; `field` is its name.
    """

    shape: str
    resident_bytes: int
    contract: Contract

    def __post_init__(self) -> None:
        identifier(self.shape, "shape")
        check_state_bytes(self.resident_bytes, "resident_bytes")

    @property
    def has_period(self) -> bool:
        """Whether blocks have deadlines; bulk, and worlds that clients pace, have none."""
        return self.contract.period_ms > 0


@dataclass(frozen=True, slots=True)
class SessionFit:
    """Session admission read on one candidate, one device and the sessions that it has.

    `block_ms`, of `steps`, and `utilization_wanted` hold for every session at its quality floor:
    at full quality where the contract names none. `taken_bytes` is what is in use beside the
    residents: moves under way, sessions without a period that are not listed.

    Raises:
        InvalidInput: a session with a period whose shape was not measured on the device.
    """

    candidate: SessionDemand
    residents: tuple[SessionDemand, ...]
    device: DeviceProfile
    taken_bytes: int = 0

    def __post_init__(self) -> None:
        whole(self.taken_bytes, "taken_bytes")
        for session in self._with_period():
            self.device.shape(session.shape)

    @property
    def resident_bytes(self) -> int:
        """State of every session, the candidate's included, and what else is in use."""
        return self.taken_bytes + sum(
            session.resident_bytes for session in (*self.residents, self.candidate)
        )

    @property
    def utilization_wanted(self) -> float:
        """The largest part of a period that any session may see taken, 1 being all of it.

        For each session the shares of those with periods no longer than its own, and the longest
        quantum among those with a longer one (Baker, 1991): B_k/T_k + sum of C_i/T_i over T_i <=
        T_k. Bulk is not counted: it starts a quantum only where that ends in time.
        """
        sessions = self._with_period()
        return max((self._utilization_at(session, sessions) for session in sessions), default=0.0)

    @property
    def utilization_max(self) -> float:
        """1 less the guard band."""
        return 1.0 - self.device.guard_band

    @property
    def fits_memory(self) -> bool:
        """Every session's state is resident at once."""
        return self.resident_bytes <= self.device.memory_bytes

    @property
    def fits_periods(self) -> bool:
        """Every session's blocks are in time, the guard band left free.

        A candidate without a period is held against none: bulk takes what is left over.
        """
        return not self.candidate.has_period or self.utilization_wanted <= self.utilization_max

    @property
    def reason(self) -> RejectReason | None:
        """Why not; None where the session is admitted. What waiting cannot cure comes first."""
        if self.candidate.resident_bytes > self.device.memory_bytes:
            return RejectReason.STATE_TOO_LARGE
        if not self.fits_memory:
            return RejectReason.DEVICE_FULL
        return None if self.fits_periods else RejectReason.DEVICE_OVERCOMMITTED

    def numbers(self) -> dict[str, float]:
        """Every quantity of the decision, with its unit last."""
        numbers = {
            "state_bytes": float(self.candidate.resident_bytes),
            "resident_bytes": float(self.resident_bytes),
            "memory_bytes": float(self.device.memory_bytes),
            "guard_band": self.device.guard_band,
            "utilization_wanted": self.utilization_wanted,
            "utilization_max": self.utilization_max,
        }
        if self.candidate.has_period:
            shape = self.device.shape(self.candidate.shape)
            steps = shape.steps_at_floor(self.candidate.contract)
            numbers |= {
                "period_ms": self.candidate.contract.period_ms,
                "quantum_ms": shape.quantum_ms,
                "steps": float(steps),
                "block_ms": shape.block_ms(steps),
                "utilization_alone": self._share(self.candidate),
            }
        return numbers

    def _with_period(self) -> list[SessionDemand]:
        return [session for session in (*self.residents, self.candidate) if session.has_period]

    def _utilization_at(self, session: SessionDemand, sessions: Sequence[SessionDemand]) -> float:
        period_ms = session.contract.period_ms
        shares = sum(self._share(it) for it in sessions if it.contract.period_ms <= period_ms)
        quanta_ms = (
            self.device.shape(other.shape).longest_ms
            for other in sessions
            if other.contract.period_ms > period_ms
        )
        return shares + max(quanta_ms, default=0.0) / period_ms

    def _share(self, session: SessionDemand) -> float:
        shape = self.device.shape(session.shape)
        return shape.block_ms(shape.steps_at_floor(session.contract)) / session.contract.period_ms
