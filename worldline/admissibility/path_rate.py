"""Path rate: what one (source, target) pair was measured to cost.

A transfer of n bytes takes w + n*p milliseconds on the wire (w the wire's set-up, p the pace in
milliseconds a byte), and a committed move takes a further o (freeze, attach, commit, activate)
around it. Estimates are kept of durations and never of rates, because durations add up and rates
do not; the rate is 1/p.

Each has a deviation of its own, because their spreads differ in kind: that of n*p grows with the
transfer and those of w and o do not. A sample teaches the one that spreads most in a transfer of
its size, and what is believed of the other is deducted: w where it is small, p where it is large,
but w again where n*p is known better than w. So the noise of small transfers is not charged to
large ones by the byte, and a congested large one is not charged to small ones. A committed move
teaches o as well.

Nothing here was advertised: without a completed transfer there is no estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from worldline.admissibility.bounds import (
    DURATION_MS_MAX,
    RATE_BYTES_PER_S_MAX,
    RATE_BYTES_PER_S_MIN,
)
from worldline.admissibility.condition import PathCost, t_migrate_ms
from worldline.admissibility.estimate import (
    NO_CHARGE,
    Estimate,
    mean_of,
    updated,
)
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


class PathRate(NamedTuple):
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
    #: The fastest small transfer; 0 while there was none.
    setup_least_ms: float = 0.0

    @classmethod
    def first(
        cls, sample: TransferSample, now_s: float, usual_overhead: Estimate | None = None
    ) -> PathRate:
        """From the first completed transfer.

        `usual_overhead` is what moves take around their wires elsewhere, or took here before:
        probes do not teach it, and without one it would be charged as nothing.

        Raises:
            InvalidInput: `now_s` is no number.
        """
        small = sample.wire_bytes <= SMALL_BYTES_MAX
        return cls(
            pace=Estimate.first(_pace_ms_per_byte(sample, 0.0)),
            pace_from_small=small,
            wire_setup=Estimate.first(sample.transfer_ms) if small else None,
            overhead=_with_overhead(usual_overhead, sample, 0.0),
            samples=1,
            updated_at_s=finite(now_s, "now_s"),
            setup_least_ms=sample.transfer_ms if small else 0.0,
        )

    def updated(self, sample: TransferSample, now_s: float) -> PathRate:
        """With one more completed transfer.

        Raises:
            InvalidInput: `now_s` is no number.
        """
        pace, wire_setup = (
            self._with_setup(sample) if self._teaches_setup(sample) else self._with_pace(sample)
        )
        small = sample.wire_bytes <= SMALL_BYTES_MAX
        least_ms = self.setup_least_ms
        if small:
            least_ms = min(least_ms or sample.transfer_ms, sample.transfer_ms)
        part_of_ms = self.expected_move_ms(sample.wire_bytes)
        return PathRate(
            pace=pace,
            pace_from_small=self.pace_from_small and small,
            wire_setup=wire_setup,
            overhead=_with_overhead(self.overhead, sample, part_of_ms),
            samples=self.samples + 1,
            updated_at_s=finite(now_s, "now_s"),
            setup_least_ms=least_ms,
        )

    def _teaches_setup(self, sample: TransferSample) -> bool:
        """Whether set-up spreads more than the pace over a transfer of that size."""
        if sample.wire_bytes <= SMALL_BYTES_MAX:
            return True
        # While the last pace is doubted, any large transfer has something to say to that.
        if self.pace_from_small or self.wire_setup is None or self.pace.outlier is not None:
            return False
        return self.wire_setup.spread > sample.wire_bytes * self.pace.spread

    def _with_setup(self, sample: TransferSample) -> tuple[Estimate, Estimate | None]:
        if self.pace_from_small:
            pace = self.pace.updated(_pace_ms_per_byte(sample, 0.0))
            return pace, updated(self.wire_setup, sample.transfer_ms)
        setup_ms = max(0.0, sample.transfer_ms - sample.wire_bytes * self.pace.mean)
        part_of_ms = self.expected_transfer_ms(sample.wire_bytes)
        return self.pace, updated(self.wire_setup, setup_ms, part_of_ms)

    def _with_pace(self, sample: TransferSample) -> tuple[Estimate, Estimate | None]:
        pace_sample = _pace_ms_per_byte(sample, self._sure_setup_ms)
        pace = (
            Estimate.first(pace_sample) if self.pace_from_small else self.pace.updated(pace_sample)
        )
        return pace, self.wire_setup

    @property
    def _sure_setup_ms(self) -> float:
        """What of a large transfer may be put down to set-up: what that took at least.

        Deducting the mean would let one small transfer on a busy host make the wire look faster
        than it ever was, and that is a promise broken; the charge for set-up has the rest.
        """
        return min(self.setup_least_ms, mean_of(self.wire_setup))

    @property
    def charged_cost(self) -> PathCost:
        """What promises are made on just after the last sample; later, `charged_cost_at`."""
        return self._charged(0.0)

    def charged_cost_at(self, age_ms: float, age_max_ms: float) -> PathCost:
        """What promises are made on `age_ms` after the last sample.

        Every part at its mean plus four deviations, which widen with age: at `age_max_ms` and
        later as much is charged as after one sample.

        Raises:
            InvalidInput: a negative age, or no time in which to age.
        """
        non_negative(age_ms, "age_ms")
        positive(age_max_ms, "age_max_ms")
        return self._charged(1.0 if age_ms >= age_max_ms else age_ms / age_max_ms)

    @property
    def charge(self) -> PathCharge:
        """What `charged_cost_at` charges, made once for many questions."""
        return PathCharge(
            self.updated_at_s,
            *self.pace.charge,
            *(NO_CHARGE if self.wire_setup is None else self.wire_setup.charge),
            *(NO_CHARGE if self.overhead is None else self.overhead.charge),
        )

    def _charged(self, staleness: float) -> PathCost:
        return PathCost(*self.charge.at(staleness))

    @property
    def mean_cost(self) -> PathCost:
        """What a move is expected to cost."""
        return PathCost(self.mean_rate_bytes_per_s, self.mean_setup_ms)

    @property
    def mean_setup_ms(self) -> float:
        """The set-up of `mean_cost`, in milliseconds."""
        return min(mean_of(self.wire_setup) + mean_of(self.overhead), DURATION_MS_MAX)

    @property
    def mean_rate_bytes_per_s(self) -> float:
        """The rate of `mean_cost`."""
        return _rate(self.pace.mean)

    @property
    def settled(self) -> bool:
        """Whether further probes would hardly change what is charged for the wire.

        Not so in the slow start, after a change, and while the last sample stands alone. What
        only committed moves teach does not count.
        """
        return self.pace.settled and (self.wire_setup is None or self.wire_setup.outlier is None)

    @property
    def deviation_bytes_per_s(self) -> float:
        """How far the rate falls for one deviation of the pace."""
        return self.mean_cost.rate_bytes_per_s - _rate(self.pace.mean + self.pace.deviation)

    def expected_transfer_ms(self, transfer_bytes: int) -> float:
        """Expected time on the wire and in verification, without the work around it."""
        return mean_of(self.wire_setup) + transfer_bytes * self.pace.mean

    def expected_move_ms(self, transfer_bytes: int) -> float:
        """T_migrate of `mean_cost`."""
        return t_migrate_ms(transfer_bytes, self.mean_rate_bytes_per_s, self.mean_setup_ms)


class PathCharge(NamedTuple):
    """What moves over one path are charged, part by part as in `Charge`.

    Flat, since one decision looks at a dozen of these.
    """

    updated_at_s: float
    pace: float
    pace_aging: float
    pace_least: float
    wire_setup: float
    wire_setup_aging: float
    wire_setup_least: float
    overhead: float
    overhead_aging: float
    overhead_least: float

    def at(self, staleness: float) -> tuple[float, float]:
        """Rate in bytes a second and set-up in milliseconds, at that staleness. Not checked."""
        _, pace, aging, least, wire, wire_aging, wire_least, over, over_aging, over_least = self
        pace += staleness * aging
        wire += staleness * wire_aging
        over += staleness * over_aging
        setup_ms = (wire if wire > wire_least else wire_least) + (
            over if over > over_least else over_least
        )
        return (
            _rate(pace if pace > least else least),
            setup_ms if setup_ms < DURATION_MS_MAX else DURATION_MS_MAX,
        )


def _with_overhead(
    overhead: Estimate | None, sample: TransferSample, part_of_ms: float
) -> Estimate | None:
    if sample.frozen_ms <= 0:
        return overhead
    return updated(overhead, max(0.0, sample.frozen_ms - sample.transfer_ms), part_of_ms)


def _pace_ms_per_byte(sample: TransferSample, setup_ms: float) -> float:
    deducted_ms = min(setup_ms, SETUP_SHARE_MAX * sample.transfer_ms)
    pace = (sample.transfer_ms - deducted_ms) / sample.wire_bytes
    return min(max(pace, _PACE_MIN_MS_PER_BYTE), _PACE_MAX_MS_PER_BYTE)


def _rate(pace_ms_per_byte: float) -> float:
    rate = 1e3 / pace_ms_per_byte
    if RATE_BYTES_PER_S_MIN <= rate <= RATE_BYTES_PER_S_MAX:
        return rate
    return min(max(rate, RATE_BYTES_PER_S_MIN), RATE_BYTES_PER_S_MAX)
