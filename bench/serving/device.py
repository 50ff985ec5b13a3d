"""Device: how long each quantum takes on one simulated GPU. The same seed, the same times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bench.fabric.streams import stream

#: Seconds of an interactive-shaped quantum, p50. Sections of the paper: 3.1 (RTX 5090), 6.4 ("a
#: full serving quantum", of no device by name: taken for the A800 of Table 4), 6.6 (A100 bound to
#: its own NUMA node, and to the wrong one).
RTX_5090_S = 0.0939
A800_S = 0.1485
A100_S = 0.152
A100_WRONG_NUMA_S = 0.202
#: Bulk-shaped over interactive-shaped quanta (section 3.1: 93.3 and 85.8 ms).
BULK_RATIO = 93.3 / 85.8
#: Variance of p50 across runs over variance within one (section 3.1).
ACROSS_OVER_WITHIN = 2.3


@dataclass(frozen=True, slots=True)
class Timing:
    """What is given of a device. The defaults are the A800 of Table 4."""

    quantum_s: float = A800_S
    #: Deviation of a quantum within a run, as a share of it. Assumed: section 3.1 says "tiny".
    jitter: float = 0.002
    #: First touch of a fresh process, paid by its first quantum (section 6.3: 11.0 to 11.5 s).
    first_touch_s: tuple[float, float] = (11.0, 11.5)
    #: Stalls of the whole device, without memory. Both fitted to two figures of pin-queue in
    #: Table 4: how many a second to its misses, how long to its skips.
    stalls_per_s: float = 0.0056
    stall_s: tuple[float, float] = (0.7, 1.3)


class Stall(NamedTuple):
    """The device does nothing between two moments."""

    at: float
    until: float


NEVER = Stall(math.inf, math.inf)


class Device:
    """One device in one run: its own speed, its own stalls.

    Speed and stalls are drawn by seed and number alone, so that every policy meets the same ones.
    """

    def __init__(
        self, timing: Timing, seed: int, number: int, stalls: Iterable[Stall] | None = None
    ) -> None:
        name = f"device {number}"
        self._timing = timing
        self._jitter = stream(seed, f"{name} jitter")
        across = timing.jitter * math.sqrt(ACROSS_OVER_WITHIN)
        run = stream(seed, f"{name} run")
        #: p50 of this run, by request shape. What an engine would have learned within it.
        self.interactive_s = timing.quantum_s * (1 + across * run.gauss(0, 1))
        self.bulk_s = self.interactive_s * BULK_RATIO
        self._first_touch_s = run.uniform(*timing.first_touch_s)
        drawn = drawn_stalls(timing, seed, number) if stalls is None else stalls
        self._stalls = iter(drawn)
        self._stall = next(self._stalls, NEVER)

    def ends_at(self, now: float, expected_s: float) -> float:
        """When a quantum begun now, of that p50, is done."""
        took_s = expected_s * (1 + self._timing.jitter * self._jitter.gauss(0, 1))
        end = now + took_s + self._first_touch_s
        self._first_touch_s = 0.0
        while self._stall.at < end:
            # One that began while the device was idle holds it up for what is left of it.
            end += max(0.0, self._stall.until - max(now, self._stall.at))
            self._stall = next(self._stalls, NEVER)
        return end


def drawn_stalls(timing: Timing, seed: int, number: int) -> Iterator[Stall]:
    """One after another, for ever; none where there are none."""
    drawn, at = stream(seed, f"device {number} stalls"), 0.0
    while timing.stalls_per_s > 0:
        at += drawn.expovariate(timing.stalls_per_s)
        until = at + drawn.uniform(*timing.stall_s)
        yield Stall(at, until)
        at = until
