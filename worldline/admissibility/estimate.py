"""Estimate: mean and deviation of a measured quantity, after Jacobson (RFC 6298, section 2)."""

from __future__ import annotations

from dataclasses import dataclass

from worldline.fields import non_negative, whole

#: RFC 6298, section 2: alpha, beta and K.
MEAN_GAIN = 1 / 8
DEVIATION_GAIN = 1 / 4
DEVIATIONS_CHARGED = 4.0
#: Deviation after one sample, as a part of it. The RFC starts at 1/2, because a retransmission
#: timer that is too short congests the network and one that is too long costs a wait. Here an
#: estimate that is too high rejects, and a rejected move teaches nothing: 1/8 charges half again
#: what was measured, and spread shows itself in the second sample.
FIRST_DEVIATION = 1 / 8


@dataclass(frozen=True, slots=True)
class Estimate:
    """A smoothed mean and mean deviation, in the unit of the samples.

    Raises:
        InvalidInput: a value that no sequence of samples leads to.
    """

    mean: float
    deviation: float
    samples: int

    def __post_init__(self) -> None:
        non_negative(self.mean, "mean")
        non_negative(self.deviation, "deviation")
        whole(self.samples, "samples", at_least=1)

    @classmethod
    def first(cls, sample: float) -> Estimate:
        """From one sample (RFC 6298, rule 2.2, with `FIRST_DEVIATION`).

        Raises:
            InvalidInput: NaN, infinite or negative.
        """
        value = non_negative(sample, "sample")
        return cls(mean=value, deviation=value * FIRST_DEVIATION, samples=1)

    def updated(self, sample: float) -> Estimate:
        """With one more sample (RFC 6298, rule 2.3: the deviation first, from the old mean).

        Raises:
            InvalidInput: NaN, infinite or negative.
        """
        value = non_negative(sample, "sample")
        error = abs(self.mean - value)
        return Estimate(
            mean=(1 - MEAN_GAIN) * self.mean + MEAN_GAIN * value,
            deviation=(1 - DEVIATION_GAIN) * self.deviation + DEVIATION_GAIN * error,
            samples=self.samples + 1,
        )

    @property
    def charged(self) -> float:
        """Mean + 4 deviations: what a promise is made on."""
        return self.mean + DEVIATIONS_CHARGED * self.deviation


def updated(estimate: Estimate | None, sample: float) -> Estimate:
    """The estimate with one more sample, which may be its first.

    Raises:
        InvalidInput: NaN, infinite or negative.
    """
    return Estimate.first(sample) if estimate is None else estimate.updated(sample)


def mean_of(estimate: Estimate | None) -> float:
    """The mean; 0 while nothing was measured."""
    return 0.0 if estimate is None else estimate.mean


def charged_of(estimate: Estimate | None) -> float:
    """The charged value; 0 while nothing was measured."""
    return 0.0 if estimate is None else estimate.charged
