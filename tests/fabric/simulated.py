"""Simulated: the same offers through the simulated fabric, with the rates that the real one showed.

The pure admission core and the movers' own wire queues (`bench.fabric`), a fluid fabric between
them, and nothing of what happened in a load but median times of control and senders' rates; what
admission had learned before is known. From the first decision that falls otherwise on, both runs
have another history: single verdicts then differ for good reasons, and counts are what is compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from bench.fabric.cell import Cell
from bench.fabric.policies.policy import Admit, Answer, Done, Policy, Reject, Terms, Wait
from bench.fabric.run import WIRE_TOO_LATE, Run
from bench.fabric.workload import Draw, Offer, Workload
from tests.fabric.cell import ShapedCell
from tests.fabric.probing import SMALL_BYTES
from tests.fabric.replayed import Core
from worldline.admissibility.path_rate import TransferSample
from worldline.ticket import MovePurpose
from worldline.verdict import RejectReason


@dataclass(frozen=True, slots=True)
class Simulated:
    """One load: verdict by move, and what became of those admitted."""

    load: float
    verdicts: dict[str, str]
    on_time: int
    missed: int

    def agreement(self, moves: list[Mapping[str, Any]]) -> float:
        """Share of the real offers on which the simulation says the same, target apart."""
        return fmean(self.verdicts[move["move_id"]] == move["verdict"] for move in moves)

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "load": self.load,
            "on_time": self.on_time,
            "missed": self.missed,
            "reject_reasons": dict(Counter(self.verdicts.values())),
        }


@dataclass(frozen=True, slots=True)
class Measured:
    """What the real fabric showed; times in seconds."""

    #: From an offer until both ends ask for the wire.
    lag_s: float
    #: From the grant until the driver knew, less what admission learns as the transfer.
    overhead_s: float
    #: From the grant until the driver knew, by source.
    held_s: dict[str, float]
    #: A probe of 64 KiB.
    small_s: float


class Rehearsal(Policy):
    """The pure core, told what the real one was told before the load; notes what it says.

    As the driver, it measures a path that the core wants measured, and asks again.
    """

    def __init__(
        self, result: Mapping[str, Any], load: Mapping[str, Any], measured: Measured
    ) -> None:
        self._core = Core(result["horizon_ms"])
        # The run's own clock begins at 0.
        self._clock_s = float(load["begun_s"])
        for entry in result["log"]:
            if entry["at_s"] < self._clock_s:
                self._core.hear(entry)
        self._measured = measured
        self._targets = {move["move_id"]: move["targets"] for move in load["moves"]}
        #: The probe under way for an offer's sake, and where it goes.
        self._probing: dict[str, tuple[str, str]] = {}
        self.verdicts: dict[str, str] = {}

    def decide(self, offer: Offer, now_s: float) -> Answer:
        """See `Policy`."""
        (source,) = offer.sources
        at_s = now_s + self._clock_s
        probed = offer.move_id in self._probing
        if probed:
            self._end_probe(offer, *self._probing.pop(offer.move_id), at_s)
        targets = self._targets[offer.move_id]
        answer = self._core.ask(offer.move_id, source, targets, offer.size_bytes, at_s)
        self.verdicts[offer.move_id] = answer.verdict.label
        claims = answer.claims
        if claims is not None:
            terms = Terms(claims.move_ms / 1e3, claims.wire_ms / 1e3, claims.bulk)
            return Admit(source, claims.target_node_id, terms)
        if answer.verdict.reason is RejectReason.PATH_UNMEASURED and not probed:
            return self._probe(offer, answer.target.node_id, now_s)
        return Reject(answer.verdict.label)

    def _probe(self, offer: Offer, target: str, now_s: float) -> Answer:
        (source,) = offer.sources
        probe_id, at_s = f"probe-of-{offer.move_id}", now_s + self._clock_s
        answer = self._core.ask(
            probe_id, source, [target], offer.size_bytes, at_s, MovePurpose.PROBE
        )
        if answer.claims is None:
            self.verdicts[offer.move_id] = answer.verdict.label
            return Reject(answer.verdict.label)
        self._probing[offer.move_id] = probe_id, target
        return Wait(now_s + self._measured.small_s + self._measured.held_s[source])

    def _end_probe(self, offer: Offer, probe_id: str, target: str, at_s: float) -> None:
        (source,) = offer.sources
        whole_ms = (self._measured.held_s[source] - self._measured.overhead_s) * 1e3
        self._core.end(probe_id, TransferSample(offer.size_bytes, whole_ms), at_s)
        small_id = f"small-{probe_id}"
        self._core.ask(small_id, source, [target], SMALL_BYTES, at_s, MovePurpose.PROBE)
        small = TransferSample(SMALL_BYTES, self._measured.small_s * 1e3)
        self._core.end(small_id, small, at_s)

    def done(self, done: Done, now_s: float) -> None:
        """See `Policy`."""
        frozen_ms = done.frozen_s * 1e3
        transfer_ms = frozen_ms - self._measured.overhead_s * 1e3
        sample = TransferSample(done.offer.size_bytes, transfer_ms, frozen_ms)
        self._core.end(done.offer.move_id, sample, now_s + self._clock_s)

    def withdrawn(self, offer: Offer, now_s: float) -> None:
        """See `Policy`."""
        self.verdicts[offer.move_id] = WIRE_TOO_LATE
        self._core.end(offer.move_id, None, now_s + self._clock_s)


def simulate(result: Mapping[str, Any], shaped: ShapedCell) -> list[Simulated]:
    """Every load of a sweep, each from a core that knows what was before it."""
    return [_simulate_load(result, load, shaped) for load in result["loads"]]


def _simulate_load(
    result: Mapping[str, Any], load: Mapping[str, Any], shaped: ShapedCell
) -> Simulated:
    moves = load["moves"]
    measured = _measured(result, shaped)
    rates = {node: shaped.size_bytes / held_s for node, held_s in measured.held_s.items()}
    horizon_s = shaped.horizon_ms / 1e3
    offers = tuple(
        Offer(move["move_id"], (move["source"],), shaped.size_bytes, horizon_s, move["offered_s"])
        for move in moves
    )
    draws = {move["move_id"]: Draw(measured.lag_s, rates[move["source"]]) for move in moves}
    policy = Rehearsal(result, load, measured)
    fastest = max(rates.values())
    cell = Cell(
        nodes=shaped.nodes,
        flow_bytes_per_s=fastest,
        egress_bytes_per_s=fastest,
        slow_sender=shaped.slow_sender,
        slow_egress_bytes_per_s=rates[shaped.slow_sender],
        ingress_bytes_per_s=fastest,
    )
    outcome = Run(cell, Workload(offers, draws), lambda *_, **__: policy, 0).play()
    on_time = sum(done.on_time for done in outcome.done)
    return Simulated(load["load"], policy.verdicts, on_time, len(outcome.done) - on_time)


def _measured(result: Mapping[str, Any], shaped: ShapedCell) -> Measured:
    """Medians over all loads of what one load alone has too little of."""
    every = [move for load in result["loads"] for move in load["moves"]]
    moved = [move for move in every if move["verified_s"] is not None]
    small_ms = [
        entry["transfer_ms"]
        for entry in result["log"]
        if entry["size_bytes"] == SMALL_BYTES and entry["transfer_ms"] > 0
    ]
    direct = [move for move in moved if not move["probed"]]
    return Measured(
        lag_s=median(move["asked_wire_s"] - move["offered_s"] for move in direct),
        overhead_s=median(_held_s(move) - move["transfer_ms"] / 1e3 for move in moved),
        # A sender of which nothing was admitted is as fast as its probes were.
        held_s={
            source: fmean(
                [_held_s(move) for move in moved if move["source"] == source]
                or [result["solo_s"][source]]
            )
            for source in shaped.nodes
        },
        small_s=median(small_ms) / 1e3,
    )


def _held_s(move: Mapping[str, Any]) -> float:
    return float(move["verified_s"] - move["granted_s"])
