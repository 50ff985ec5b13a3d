"""Device profile: what a device has room for, and what a quantum costs on it by request shape.

Paper, section 5: admission computes from the deployment's own profile rows, not from constants of
a model family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from worldline.admissibility.bounds import check_duration_ms, check_state_bytes
from worldline.contract import QUALITY_FLOOR_STEPS_MAX
from worldline.errors import InvalidInput
from worldline.fields import non_negative, whole

#: Most of a period that a guard band may take.
GUARD_BAND_MAX = 0.9


@dataclass(frozen=True, slots=True)
class ShapeProfile:
    """The measured quantum of one request shape, on one device as it is placed.

    Cost follows the shape's conditioning window (85.8 ms interactive, 93.3 ms bulk; section 3.1)
    and the device's NUMA node (section 6.6). A block is one quantum for each denoising step, all
    `denoising_steps` of them at full quality, and `context_quanta` of equal cost for the context's
    keys and values.

    Raises:
        InvalidInput: a value out of range; `field` is its name.
    """

    quantum_ms: float
    denoising_steps: int
    context_quanta: int = 1

    def __post_init__(self) -> None:
        check_duration_ms(self.quantum_ms, "quantum_ms")
        whole(self.denoising_steps, "denoising_steps", at_least=1, at_most=QUALITY_FLOOR_STEPS_MAX)
        whole(self.context_quanta, "context_quanta", at_most=QUALITY_FLOOR_STEPS_MAX)

    def block_ms(self, steps: int) -> float:
        """One block of that many denoising steps, in milliseconds.

        Raises:
            InvalidInput: no step, or more than any contract asks for.
        """
        whole(steps, "steps", at_least=1, at_most=QUALITY_FLOOR_STEPS_MAX)
        return (steps + self.context_quanta) * self.quantum_ms


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
