"""Policy: what every controller answers, and what it is told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from bench.fabric.cell import Cell
from bench.fabric.workload import Offer, Workload


@dataclass(frozen=True, slots=True)
class Terms:
    """What a ticket says of its wire: charged from the grant on, and expected on the wire."""

    move_s: float
    wire_s: float
    bulk: bool = False


@dataclass(frozen=True, slots=True)
class Admit:
    """Go, from that node to that one.

    The wire starts when both ends are ready, which is a lag after the decision. With `terms` the
    two movers are asked for it then, and it starts when they grant it; with `wire_at_s` it starts
    at that time, for whoever knows the lag.
    """

    source: str
    target: str
    terms: Terms | None = None
    wire_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """No. `later` where the offer had waited before."""

    reason: str
    later: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Ask again then, with the same offer."""

    until_s: float


Answer = Admit | Reject | Wait


@dataclass(frozen=True, slots=True)
class Done:
    """How an admitted move ended: when it asked for its wire, and the wire from the first byte
    until the last is verified."""

    offer: Offer
    source: str
    target: str
    asked_s: float
    wire_begun_s: float
    wire_ended_s: float

    @property
    def frozen_s(self) -> float:
        """The world stands still from the first byte until the copy is verified."""
        return self.wire_ended_s - self.wire_begun_s

    @property
    def bytes_per_s(self) -> float:
        """Goodput of the move."""
        return self.offer.size_bytes / self.frozen_s

    @property
    def waited_s(self) -> float:
        """From when both ends were ready until the wire was granted; the world goes on."""
        return self.wire_begun_s - self.asked_s

    @property
    def on_time(self) -> bool:
        """Within its horizon, the wait included; strict, as condition (1).

        From when it asked for the wire, for every policy alike. The lag before is no part of it:
        that is how long the ends take to get ready, and no controller's doing.
        """
        return self.wire_ended_s - self.asked_s < self.offer.horizon_s


class Policy(ABC):
    """A controller. It is told of nothing but offers and the ends of the moves it admitted."""

    @abstractmethod
    def decide(self, offer: Offer, now_s: float) -> Answer:
        """May this move start now, and into which node?"""

    def done(self, done: Done, now_s: float) -> None:  # noqa: B027 (most do not listen)
        """A move that this policy admitted has ended."""

    def withdrawn(self, offer: Offer, now_s: float) -> None:  # noqa: B027 (only with terms)
        """A move that this policy admitted was refused its wire, and will not be made."""


class MakePolicy(Protocol):
    """Builds a policy for one run. Whoever looks at the draws of `workload` is an oracle."""

    def __call__(self, cell: Cell, workload: Workload, seed: int) -> Policy: ...


def targets(cell: Cell, source: str, into: Mapping[str, int]) -> list[str]:
    """Where a move may go: every other node, the least loaded first, then by name."""
    others = [node for node in cell.nodes if node != source]
    return sorted(others, key=lambda node: (into.get(node, 0), node))


def paths(
    cell: Cell, offer: Offer, into: Mapping[str, int], out_of: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Every (source, target) that an offer has: idle receivers, then idle senders, first.

    Among equals the sources in the offer's order.
    """
    order = {source: place for place, source in enumerate(offer.sources)}
    every = [(s, t) for s in offer.sources for t in cell.nodes if s != t]
    return sorted(every, key=lambda p: (into.get(p[1], 0), out_of.get(p[0], 0), order[p[0]], p[1]))
