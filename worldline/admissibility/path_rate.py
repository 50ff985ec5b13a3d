"""Path rate: what one (source, target) pair was measured to cost.

A transfer of n bytes takes w + n*p milliseconds on the wire (w the wire's set-up, p the pace in
milliseconds a byte), and a committed move takes a further o (freeze, attach, commit, activate)
around it. Small transfers teach w, large ones p, committed moves o. Estimates are kept of
durations and never of rates, because durations add up and rates do not; the rate is 1/p.

Nothing here was advertised: without a completed transfer there is no estimate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from worldline.admissibility.bounds import (
    DURATION_MS_MAX,
    RATE_BYTES_PER_S_MAX,
    RATE_BYTES_PER_S_MIN,
)
from worldline.admissibility.condition import PathCost
from worldline.admissibility.estimate import Estimate, charged_of, mean_of, updated
from worldline.fields import finite, non_negative, positive, whole

#: Up to here a transfer is mostly set-up, whatever the path: 2 MiB take 0.2 ms at 10 GB/s.
SMALL_BYTES_MAX = 2 * 1024 * 1024
#: Most of a large transfer that may be put down to set-up. Keeps an inflated set-up estimate
#: (one small transfer on a busy host) from making the wire look faster than it ever was: after
#: one sample the charged pace is 0.75 * 1.5 of the transfer's whole time, set-up included.
SETUP_SHARE_MAX = 0.25

_PACE_MIN_MS_PER_BYTE = 1e3 / RATE_BYTES_PER_S_MAX
_PACE_MAX_MS_PER_BYTE = 1e3 / RATE_BYTES_PER_S_MIN


@dataclass(frozen=True, slots=True)
class TransferSample:
    """One completed transfer: bytes, the time until both ends had verified them, the move's cost.

    `frozen_ms` is from freeze to activation, 0 where the move did not commit (or was a probe).

    Raises:
        InvalidInput: no bytes, no time, or a value that is no number.
    """

    wire_bytes: int
    transfer_ms: float
    frozen_ms: float = 0.0

    def __post_init__(self) -> None:
        whole(self.wire_bytes, "wire_bytes", at_least=1)
        positive(self.transfer_ms, "transfer_ms", at_most=DURATION_MS_MAX)
        non_negative(self.frozen_ms, "frozen_ms", at_most=DURATION_MS_MAX)


@dataclass(frozen=True, slots=True)
class PathRate:
    """Estimates of one path; `PathRate.first` begins, `updated` goes on.

    `pace` is in milliseconds a byte. While `pace_from_small` only small transfers were seen: their
    set-up is in the pace, which is honest but slow, and the first large transfer replaces it.
    """

    pace: Estimate
    pace_from_small: bool
    wire_setup: Estimate | None
    overhead: Estimate | None
    samples: int
    updated_at_s: float

    @classmethod
    def first(cls, sample: TransferSample, now_s: float) -> PathRate:
        """From the first completed transfer.

        Raises:
            InvalidInput: `now_s` is no number.
        """
        small = sample.wire_bytes <= SMALL_BYTES_MAX
        return cls(
            pace=Estimate.first(_pace_ms_per_byte(sample, 0.0)),
            pace_from_small=small,
            wire_setup=Estimate.first(sample.transfer_ms) if small else None,
            overhead=_with_overhead(None, sample),
            samples=1,
            updated_at_s=finite(now_s, "now_s"),
        )

    def updated(self, sample: TransferSample, now_s: float) -> PathRate:
        """With one more completed transfer.

        Raises:
            InvalidInput: `now_s` is no number.
        """
        small = sample.wire_bytes <= SMALL_BYTES_MAX
        taught = self._with_small(sample) if small else self._with_large(sample)
        return replace(
            taught,
            overhead=_with_overhead(self.overhead, sample),
            samples=self.samples + 1,
            updated_at_s=finite(now_s, "now_s"),
        )

    def _with_small(self, sample: TransferSample) -> PathRate:
        if self.pace_from_small:
            pace_sample = _pace_ms_per_byte(sample, 0.0)
            return replace(
                self,
                pace=self.pace.updated(pace_sample),
                wire_setup=updated(self.wire_setup, sample.transfer_ms),
            )
        setup_ms = max(0.0, sample.transfer_ms - sample.wire_bytes * self.pace.mean)
        return replace(self, wire_setup=updated(self.wire_setup, setup_ms))

    def _with_large(self, sample: TransferSample) -> PathRate:
        pace_sample = _pace_ms_per_byte(sample, mean_of(self.wire_setup))
        if self.pace_from_small:
            return replace(self, pace=Estimate.first(pace_sample), pace_from_small=False)
        return replace(self, pace=self.pace.updated(pace_sample))

    @property
    def charged_cost(self) -> PathCost:
        """What promises are made on: every part at its mean plus four deviations."""
        return _cost(self.pace.charged, charged_of(self.wire_setup) + charged_of(self.overhead))

    @property
    def mean_cost(self) -> PathCost:
        """What a move is expected to cost."""
        return _cost(self.pace.mean, mean_of(self.wire_setup) + mean_of(self.overhead))

    @property
    def deviation_bytes_per_s(self) -> float:
        """How far the rate falls for one deviation of the pace."""
        return self.mean_cost.rate_bytes_per_s - _rate(self.pace.mean + self.pace.deviation)

    def expected_transfer_ms(self, transfer_bytes: int) -> float:
        """Expected time on the wire and in verification, without the work around it."""
        return mean_of(self.wire_setup) + transfer_bytes * self.pace.mean


def _with_overhead(overhead: Estimate | None, sample: TransferSample) -> Estimate | None:
    if sample.frozen_ms <= 0:
        return overhead
    return updated(overhead, max(0.0, sample.frozen_ms - sample.transfer_ms))


def _pace_ms_per_byte(sample: TransferSample, setup_ms: float) -> float:
    deducted_ms = min(setup_ms, SETUP_SHARE_MAX * sample.transfer_ms)
    pace = (sample.transfer_ms - deducted_ms) / sample.wire_bytes
    return min(max(pace, _PACE_MIN_MS_PER_BYTE), _PACE_MAX_MS_PER_BYTE)


def _rate(pace_ms_per_byte: float) -> float:
    return min(max(1e3 / pace_ms_per_byte, RATE_BYTES_PER_S_MIN), RATE_BYTES_PER_S_MAX)


def _cost(pace_ms_per_byte: float, setup_ms: float) -> PathCost:
    return PathCost(
        rate_bytes_per_s=_rate(pace_ms_per_byte), setup_ms=min(setup_ms, DURATION_MS_MAX)
    )
