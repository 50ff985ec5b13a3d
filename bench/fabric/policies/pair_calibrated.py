"""Naive pair-calibrated: the paper's baseline arm, min-queue-depth on max_fan_in = 2."""

from __future__ import annotations

from bench.fabric.cell import Cell
from bench.fabric.policies.believed import Believed
from bench.fabric.policies.policy import Admit, Answer, Policy, Reject, targets
from bench.fabric.workload import Offer, Workload

FAN_IN_MAX = 2


class PairCalibrated(Policy):
    """Takes the receiver with the shortest queue, up to two moves each.

    Calibrated on one fast pair: it predicts every move at that pair's solo rate, whoever sends and
    whatever else goes into the receiver. That optimism is what the paper gives it. What it counts
    as under way: `believed.py`.
    """

    def __init__(self, cell: Cell, workload: Workload, seed: int) -> None:
        del workload, seed
        self._cell = cell
        self._believed = Believed()

    def decide(self, offer: Offer, now_s: float) -> Answer:
        """The shortest queue, if that is below the cap."""
        self._believed.forget_ended(now_s)
        into = self._believed.into()
        source = offer.sources[0]
        target = targets(self._cell, source, into)[0]
        if into[target] >= FAN_IN_MAX:
            return Reject("RECEIVERS_BUSY")
        ends_s = now_s + offer.size_bytes / self._cell.flow_bytes_per_s
        self._believed.add(source, target, ends_s)
        return Admit(source, target)
