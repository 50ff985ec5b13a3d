"""Rungs: what the quality knob opens for bulk as the period gets wider (section 6.6).

At 600 ms an interactive block at full quality leaves nothing: four quanta of 148.5 ms. One step
less leaves one quantum a period. With wider periods both leave more, and the knob is worth less:
the ratio is (P - 3q) / (P - 4q).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.serving.cell import Cell
from bench.serving.policies.table import ARMS, GIVES, NO_KNOB, WORLDLINE
from bench.serving.trials import Say, Trials, trials

#: Seconds. The paper names the first; of the wider ones it gives payoffs alone, and these periods
#: are chosen by them: one, two and four whole quanta left at full quality.
PERIODS_S = (0.6, 0.75, 0.9, 1.2)
#: Bulk blocks a second and device, with the knob and without, at the first rung.
PAPER_KNOB_PER_S = 0.79
PAPER_NO_KNOB_PER_S = 0.0
PAPER_PAYOFFS = (1.96, 1.46, 1.21)
#: What counts as none: a percent of what the knob gives. A stall makes a block late and so skips
#: releases; in the rest of that period a bulk quantum fits even without the knob.
NONE_PER_S = 0.01


@dataclass(frozen=True, slots=True)
class Rung:
    """One period: bulk with the knob, without it, and with it where bulk may not cost quality."""

    knob: Trials
    no_knob: Trials
    kept: Trials

    @property
    def period_s(self) -> float:
        """From one release to the next."""
        return self.knob.cell.period_s

    @property
    def payoff(self) -> float:
        """Bulk with the knob over bulk without."""
        without = self.no_knob.mean("bulk_per_device_s")
        return self.knob.mean("bulk_per_device_s") / without if without else float("inf")


def rungs(base: Cell, seeds: Sequence[int], say: Say) -> list[Rung]:
    """Every period, with a bulk job that never ends."""
    found = []
    for period_s in PERIODS_S:
        cell = replace(base, period_s=period_s, bulk_blocks=None)
        played = [trials(cell, ARMS[name], seeds, say) for name in (GIVES, NO_KNOB, WORLDLINE)]
        found.append(Rung(*played))
    return found
