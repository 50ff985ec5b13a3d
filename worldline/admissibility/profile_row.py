"""Profile row: what quanta of one request shape were measured to take, where, and how long ago.

Paper, section 6.6: "A profile must therefore key to the placement itself, because the same SKU
spans both sides of the deadline." A row is of one device, one binding and one request shape, and
nothing else stands in for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from worldline.admissibility.bounds import DURATION_MS_MAX, check_duration_ms
from worldline.admissibility.device_profile import ShapeProfile
from worldline.contract import QUALITY_FLOOR_STEPS_MAX, Contract, DecodeTier
from worldline.errors import InvalidInput
from worldline.fields import BYTES_MAX, enum_member, identifier, non_negative, whole
from worldline.numa import Binding

#: A row that nothing has confirmed for ten minutes is not believed: clocks, heat and neighbours
#: change in less, and measuring again takes a few blocks.
ROW_AGE_MAX_MS = 600_000.0


@dataclass(frozen=True, slots=True)
class RequestShape:
    """What changes the cost of a quantum; sessions of equal shape share a row.

    Denoising steps are not part of it: fewer of them are fewer quanta of the same cost.

    Raises:
        InvalidInput: no name, or no such tier; `field` is `shape.<name>`.
    """

    preset: str
    decode_tier: DecodeTier = DecodeTier.FULL

    def __post_init__(self) -> None:
        identifier(self.preset, "shape.preset")
        tier = enum_member(DecodeTier, self.decode_tier, "shape.decode_tier")
        object.__setattr__(self, "decode_tier", tier)

    @property
    def name(self) -> str:
        """`tiny/full`: the key of its row."""
        return f"{self.preset}/{self.decode_tier.name.lower()}"


def shape_of(preset: str, contract: Contract) -> RequestShape:
    """The shape of a session's requests."""
    return RequestShape(preset, contract.decode_tier)


@dataclass(frozen=True, slots=True)
class QuantumSpread:
    """How long quanta of one kind took: median and 95th percentile of the latest `samples`.

    Quantiles and not mean and deviation: times are skewed, one stall of a second would move a mean
    for a hundred quanta, and a period is kept by the slow quanta and not by the typical one.

    Raises:
        InvalidInput: out of range, or a percentile below the median; `field` is its name.
    """

    samples: int
    p50_ms: float
    p95_ms: float

    def __post_init__(self) -> None:
        whole(self.samples, "samples", at_least=1, at_most=BYTES_MAX)
        check_duration_ms(self.p50_ms, "p50_ms")
        check_duration_ms(self.p95_ms, "p95_ms")
        if self.p95_ms < self.p50_ms:
            raise InvalidInput(
                f"p95_ms is {self.p95_ms:g}, less than p50_ms, {self.p50_ms:g}", field="p95_ms"
            )


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One row. `closing` is of the last quantum of a block (context pass and decoding), `step` of
    all others: None where a block is one quantum.

    A block of full quality has `quanta_per_block`, for `denoising_steps`; each step left out is one
    quantum fewer. `age_ms` counts from the latest quantum in it.

    Raises:
        InvalidInput: a value out of range, or steps that were not measured; `field` is its name.
    """

    shape: RequestShape
    binding: Binding
    device: str
    quanta_per_block: int
    denoising_steps: int
    step: QuantumSpread | None
    closing: QuantumSpread
    age_ms: float = 0.0

    def __post_init__(self) -> None:
        identifier(self.device, "device")
        most = QUALITY_FLOOR_STEPS_MAX
        whole(self.quanta_per_block, "quanta_per_block", at_least=1, at_most=most)
        whole(self.denoising_steps, "denoising_steps", at_least=1, at_most=most)
        # A day and more is as old as any: ages never make a row that cannot be told of.
        age_ms = non_negative(self.age_ms, "age_ms")
        object.__setattr__(self, "age_ms", min(age_ms, DURATION_MS_MAX))
        if self.step is None and self.quanta_per_block > 1:
            raise InvalidInput(
                f"{self.shape.name} has {self.quanta_per_block} quanta a block, and only the last "
                "was measured",
                field="step",
            )

    def believed(self, age_max_ms: float = ROW_AGE_MAX_MS) -> bool:
        """Whether it is recent enough to decide by."""
        return self.age_ms <= age_max_ms

    @property
    def charge(self) -> ShapeProfile:
        """What admission reckons with: each quantum at its 95th percentile."""
        closing_ms = self.closing.p95_ms
        return ShapeProfile(
            quantum_ms=closing_ms if self.step is None else self.step.p95_ms,
            denoising_steps=self.denoising_steps,
            context_quanta=self.quanta_per_block - self.denoising_steps,
            closing_ms=closing_ms,
        )
