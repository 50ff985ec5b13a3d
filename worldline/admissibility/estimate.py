"""Estimate: mean and deviation of a measured quantity, after Jacobson (RFC 6298, section 2).

Kept from the RFC: the gains, the mean deviation and the four of them that are charged. Different,
because here a value that is too high rejects moves and a rejected move teaches nothing, while one
that is too low misses a deadline:

- A slow start. The gains begin at 1/n, so that the first samples count alike (a running mean),
  and the first deviation is smaller than the RFC's.
- A floor of the deviation. The RFC bounds it by the granularity of its clock (its G); here a
  quiet path would otherwise be charged at its mean, and any drift would be a miss.
- Bounded influence (Huber 1964). An error beyond what was charged is clipped there: one slow
  move is an outlier, and no more is made of it than of an error that was just charged for. But
  it is remembered: until the next sample, the charge covers it as far as `DOUBT_SHARE` goes; and
  where the next lies beyond on the same side, this is a change, and the estimate begins anew
  from what those two agree on.
- Downwards an outlier does not widen the deviation: a move that was too fast breaks no promise.
  (Linux `tcp_rtt_estimator` damps the same case for the same reason.)
- Age. The deviation that is charged grows from what was measured to that of a single sample.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from worldline.fields import non_negative, whole

#: RFC 6298, section 2: alpha, beta and K; in the slow start, 1/n where that is more.
MEAN_GAIN = 1 / 8
DEVIATION_GAIN = 1 / 4
DEVIATIONS_CHARGED = 4.0
#: Deviation after one sample, as a part of it. The RFC starts at 1/2, because a retransmission
#: timer that is too short congests the network and one that is too long costs a wait. Here that
#: would admit nothing to learn from: 1/8 charges half again what was measured, and spread shows
#: itself in the second sample.
FIRST_DEVIATION = 1 / 8
#: Least deviation that is charged, as a part of the mean: four of them are 8 %. A rate 7 % below
#: the believed one takes 1/0.93 = 7.5 % longer; what is left is for a quiet path's jitter. Every
#: percent more rejects moves that would have been on time.
DEVIATION_FLOOR = 1 / 50
#: What an outlier that nothing has confirmed may add to the charge, as a part of the whole that
#: was measured. As much as one sample adds to itself: the next move knows as little. It covers
#: a rate 30 % below the believed one (1/0.7 = 1.43 times as long).
DOUBT_SHARE = DEVIATIONS_CHARGED * FIRST_DEVIATION
#: The slow start is over when 1/n has come down to the gain of the mean.
SAMPLES_SETTLED = round(1 / MEAN_GAIN)
#: Above this, four deviations more might no longer be a number.
SAMPLE_MAX = 1e300


class Outlier(NamedTuple):
    """The last sample, where it lay beyond what was expected; `charged` while nobody knows why."""

    sample: float
    charged: float


class Charge(NamedTuple):
    """What is charged: `new` at once, `aging` more when it is oldest, `least` always."""

    new: float
    aging: float
    least: float

    def at(self, staleness: float) -> float:
        """At that staleness: 0 is new, 1 the oldest that is believed. Not checked."""
        charged = self.new + staleness * self.aging
        return charged if charged > self.least else self.least


#: Nothing measured, nothing charged.
NO_CHARGE = Charge(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A smoothed mean and mean deviation, in the unit of the samples.

    `samples` counts them all, `learned` those since the last change: what the mean stands on.

    Raises:
        InvalidInput: a value that no sequence of samples leads to.
    """

    mean: float
    deviation: float
    samples: int
    learned: int
    outlier: Outlier | None = None

    def __post_init__(self) -> None:
        non_negative(self.mean, "mean")
        non_negative(self.deviation, "deviation")
        whole(self.samples, "samples", at_least=1)
        whole(self.learned, "learned", at_least=1, at_most=self.samples)

    @classmethod
    def first(cls, sample: float) -> Estimate:
        """From one sample (RFC 6298, rule 2.2, with `FIRST_DEVIATION`).

        Raises:
            InvalidInput: NaN, infinite, negative or above `SAMPLE_MAX`.
        """
        value = non_negative(sample, "sample", at_most=SAMPLE_MAX)
        return cls(mean=value, deviation=value * FIRST_DEVIATION, samples=1, learned=1)

    def updated(self, sample: float, part_of: float = 0.0) -> Estimate:
        """With one more sample (RFC 6298, rule 2.3: the deviation first, from the old mean).

        `part_of` is the expected whole where the sample is a part of something larger: an outlier
        of a small part is a small matter, and is charged as such.

        Raises:
            InvalidInput: NaN, infinite, negative or above `SAMPLE_MAX`.
        """
        value = non_negative(sample, "sample", at_most=SAMPLE_MAX)
        limit = DEVIATIONS_CHARGED * self.spread
        if limit == 0.0:
            # Nothing but zeros so far: they have no scale to judge by.
            return self._anew(Estimate.first(value))
        error = value - self.mean
        if abs(error) <= limit:
            return self._learn(error, abs(error))
        if self.outlier is not None and (self.outlier.sample > self.mean) == (error > 0):
            return self._changed(self.outlier.sample, value, part_of)
        if error < 0:
            return replace(self._learn(-limit, self.deviation), outlier=Outlier(value, 0.0))
        return _doubting(self._learn(limit, limit), value, part_of)

    def _changed(self, before: float, value: float, part_of: float) -> Estimate:
        """Two beyond on one side agree on the one that is nearer: that counts for both."""
        near = min(before, value, key=lambda sample: abs(sample - self.mean))
        begun = self._anew(Estimate.first(near).updated(near))
        return _doubting(begun, value, part_of) if value > begun.charged else begun

    def _learn(self, error: float, spread: float) -> Estimate:
        learned = self.learned + 1
        mean_gain = max(MEAN_GAIN, 1 / learned)
        deviation_gain = max(DEVIATION_GAIN, 1 / learned)
        return Estimate(
            mean=max(0.0, self.mean + mean_gain * error),
            deviation=(1 - deviation_gain) * self.deviation + deviation_gain * spread,
            samples=self.samples + 1,
            learned=learned,
        )

    def _anew(self, begun: Estimate) -> Estimate:
        return replace(begun, samples=self.samples + 1)

    @property
    def spread(self) -> float:
        """The deviation, and not less than its floor."""
        return max(self.deviation, self.mean * DEVIATION_FLOOR)

    @property
    def settled(self) -> bool:
        """Whether the slow start is over and the last sample was none to wonder about."""
        return self.learned >= SAMPLES_SETTLED and self.outlier is None

    @property
    def charged(self) -> float:
        """Mean + 4 deviations, and no less than an open doubt: what a promise is made on."""
        return self.charged_at(0.0)

    def charged_at(self, staleness: float) -> float:
        """What is charged for an estimate that old: 0 is new, 1 the oldest that is believed.

        In between the deviation widens evenly up to that of a single sample, so that no constant
        is believed to the last and dropped at once.

        Raises:
            InvalidInput: not between 0 and 1.
        """
        return self.charge.at(non_negative(staleness, "staleness", at_most=1.0))

    @property
    def charge(self) -> Charge:
        """What is charged at any staleness, made once for many questions."""
        spread = self.spread
        wider = max(0.0, FIRST_DEVIATION * self.mean - spread)
        return Charge(
            new=self.mean + DEVIATIONS_CHARGED * spread,
            aging=DEVIATIONS_CHARGED * wider,
            least=0.0 if self.outlier is None else self.outlier.charged,
        )


def _doubting(estimate: Estimate, value: float, part_of: float) -> Estimate:
    """With `value` as an outlier above it, charged as far as a doubt goes."""
    charged = min(
        value * (1 + DEVIATIONS_CHARGED * DEVIATION_FLOOR),
        estimate.mean + DOUBT_SHARE * max(estimate.mean, part_of),
    )
    return replace(estimate, outlier=Outlier(value, charged))


def updated(estimate: Estimate | None, sample: float, part_of: float = 0.0) -> Estimate:
    """The estimate with one more sample, which may be its first.

    Raises:
        InvalidInput: NaN, infinite, negative or above `SAMPLE_MAX`.
    """
    return Estimate.first(sample) if estimate is None else estimate.updated(sample, part_of)


def mean_of(estimate: Estimate | None) -> float:
    """The mean; 0 while nothing was measured."""
    return 0.0 if estimate is None else estimate.mean
