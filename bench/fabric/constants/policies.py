"""Policies: admission as placement asks it, probes and all; and constants that nobody corrects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.fabric.cell import STATE_BYTES, Cell
from bench.fabric.constants.scenario import WARM_MOVES
from bench.fabric.fluid import Fabric
from bench.fabric.policies.admission import PROBES_BYTES, WorldlineAdmission
from bench.fabric.policies.policy import Admit, Answer, Done, Policy, Reject, targets
from bench.fabric.streams import stream
from bench.fabric.workload import Offer, Workload
from worldline.verdict import RejectReason


@dataclass(frozen=True, slots=True)
class Lesson:
    """One sample that a path took, and the move that it expects since."""

    at_s: float
    source: str
    target: str
    move_s: float


class ProbedAdmission(WorldlineAdmission):
    """What admission says it does not know is probed, and asked again, as placement does.

    A probe takes no time here, and meets nobody: it is 25 times smaller than a state.
    `slower` is what every path costs now, in times of the beginning.
    """

    def __init__(self, cell: Cell, workload: Workload, seed: int) -> None:
        warm = (*PROBES_BYTES, *(STATE_BYTES for _ in range(WARM_MOVES)))
        super().__init__(cell, workload, seed, warm)
        self.slower: Callable[[], Mapping[tuple[str, str], float]] = dict
        self.probes = 0
        #: What paths taught: when, which, and what a whole state is expected to take from then on.
        self.lessons: list[Lesson] = []

    def decide(self, offer: Offer, now_s: float) -> Answer:
        """Once more after probes."""
        answer = super().decide(offer, now_s)
        if isinstance(answer, Reject) and answer.reason == RejectReason.PATH_UNMEASURED.name:
            for target in self._others(offer.sources[0]):
                self._probe(offer.sources[0], target, now_s)
            answer = super().decide(offer, now_s)
        return answer

    def _probe(self, source: str, target: str, now_s: float) -> None:
        fabric = Fabric(self._cell, stream(self._seed, f"probes/{self.probes}"))
        fabric.slow_down(self.slower())
        for size_bytes in PROBES_BYTES:
            if not self.probe(fabric, source, target, size_bytes, now_s):
                break
            self.probes += 1
            self._note(source, target, now_s)

    def done(self, done: Done, now_s: float) -> None:
        """Teach, and note what was learned."""
        super().done(done, now_s)
        self._note(done.source, done.target, now_s)

    def _note(self, source: str, target: str, now_s: float) -> None:
        path = self.core.paths.get(source, target)
        assert path is not None
        move_s = path.mean_cost.t_migrate_ms(STATE_BYTES) / 1e3
        self.lessons.append(Lesson(now_s, source, target, move_s))


class FixedConstants(Policy):
    """The paper's idiom-stale arm: measured once, never again (section 6.5).

    One move into a receiver and one out of a sender, and those it knows the ends of.
    """

    def __init__(self, cell: Cell, workload: Workload, seed: int) -> None:
        del workload, seed
        self._cell = cell
        self._busy: set[tuple[str, str]] = set()

    def decide(self, offer: Offer, now_s: float) -> Answer:
        """In time by the old constant."""
        del now_s
        source = offer.sources[0]
        if self._cell.solo_s(source, offer.size_bytes) >= offer.horizon_s:
            return Reject(RejectReason.HORIZON_TOO_SHORT.name)
        if ("out", source) in self._busy:
            return Reject(RejectReason.SENDER_BUSY.name)
        into = {node: 1 for side, node in self._busy if side == "into"}
        target = targets(self._cell, source, into)[0]
        if target in into:
            return Reject(RejectReason.RECEIVER_BUSY.name)
        self._busy |= {("out", source), ("into", target)}
        return Admit(source, target)

    def done(self, done: Done, now_s: float) -> None:
        """Both ends are free."""
        del now_s
        self._busy -= {("out", done.source), ("into", done.target)}
