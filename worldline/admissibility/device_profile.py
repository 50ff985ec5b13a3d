"""Device profile: what a device has room for, and what a quantum costs on it by request shape.

Paper, section 5: admission computes from the deployment's own profile rows, not from constants of
a model family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from worldline.admissibility.bounds import check_duration_ms, check_state_bytes
from worldline.contract import QUALITY_FLOOR_STEPS_MAX, Contract
from worldline.errors import InvalidInput
from worldline.fields import non_negative, whole

#: Most of a period that a guard band may take.
GUARD_BAND_MAX = 0.9


@dataclass(frozen=True, slots=True)
class ShapeProfile:
    """The measured quantum of one request shape, on one device as it is placed.

    Cost follows the shape's conditioning window (85.8 ms interactive, 93.3 ms bulk; section 3.1)
    and the device's NUMA node (section 6.6). A block is one quantum for each denoising step, all
    `denoising_steps` of them at full quality, and `context_quanta` for the context's keys and
    values: fewer than none where a quantum takes several steps. Its last quantum may cost
    something else, for what it decodes: `closing_ms`; None: as much as any other.

    Raises:
        InvalidInput: a value out of range; `field` is its name.
    """

    quantum_ms: float
    denoising_steps: int
    context_quanta: int = 1
    closing_ms: float | None = None

    def __post_init__(self) -> None:
        check_duration_ms(self.quantum_ms, "quantum_ms")
        most = QUALITY_FLOOR_STEPS_MAX
        whole(self.denoising_steps, "denoising_steps", at_least=1, at_most=most)
        whole(self.context_quanta, "context_quanta", at_least=-most, at_most=most)
        if self.closing_ms is not None:
            check_duration_ms(self.closing_ms, "closing_ms")

    @property
    def longest_ms(self) -> float:
        """The longest that a world may wait for a quantum of another, in milliseconds."""
        return max(self.quantum_ms, self.closing_ms or 0.0)

    def steps_at_floor(self, contract: Contract) -> int:
        """Steps of the cheapest block that can always be asked for.

        All of them where the contract names no floor; and where it caps degraded blocks in a row,
        because the next one then has full quality whatever it costs.
        """
        if contract.degraded_consecutive_max > 0:
            return self.denoising_steps
        return min(contract.quality_floor_steps or self.denoising_steps, self.denoising_steps)

    def block_ms(self, steps: int) -> float:
        """One block of that many denoising steps, in milliseconds.

        Raises:
            InvalidInput: no step, or more than any contract asks for.
        """
        whole(steps, "steps", at_least=1, at_most=QUALITY_FLOOR_STEPS_MAX)
        closing_ms = self.quantum_ms if self.closing_ms is None else self.closing_ms
        return max(0, steps + self.context_quanta - 1) * self.quantum_ms + closing_ms


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """A device: bytes for resident state, the guard band, and its rows by request shape.

    `guard_band` is the part of every period that admission leaves free.

    Raises:
        InvalidInput: a value out of range; `field` is its name.
    """

    memory_bytes: int
    guard_band: float
    shapes: Mapping[str, ShapeProfile] = field(hash=False)

    def __post_init__(self) -> None:
        check_state_bytes(self.memory_bytes, "memory_bytes")
        non_negative(self.guard_band, "guard_band", at_most=GUARD_BAND_MAX)
        # A copy: the caller's mapping may change later, this value may not.
        object.__setattr__(self, "shapes", dict(self.shapes))

    def shape(self, name: str) -> ShapeProfile:
        """The row of that request shape.

        Raises:
            InvalidInput: it was not measured here; no other shape's row stands in for it.
        """
        if name not in self.shapes:
            known = ", ".join(sorted(self.shapes)) or "none"
            raise InvalidInput(
                f"request shape {name} was not measured on this device (measured: {known})",
                field="shape",
            )
        return self.shapes[name]
