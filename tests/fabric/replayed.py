"""Replayed: the pure core, given what really happened, says every verdict again.

Nothing is simulated here but the clock: the core is asked when the service was asked, half-way
between question and answer, and told of ends when the service was told. After a verdict that
differs the core is brought back to what really is under way, so that one difference is not the next
one's cause. What differs is then what those few milliseconds decided, or a defect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from services.admission.core import Admission, MoveAnswer
from services.admission.policy import Policy
from services.admission.requests import MoveReport, MoveRequest, MoveTarget, RunningMove
from tests.fabric.desk import ASKED, CLIENT, SLOTS_FREE
from tests.fabric.worlds import EPOCH
from worldline.admissibility.path_rate import TransferSample
from worldline.contract import Contract, ServiceClass
from worldline.state.layout import flat_layout
from worldline.ticket import MovePurpose

#: Above every move here; what is brought back ends when its end is told.
_REMAINING_MS = 60_000
_ADMITTED = "admitted"


@dataclass(frozen=True, slots=True)
class Differing:
    """One question to which both do not say the same."""

    move_id: str
    real: str
    pure: str
    explanation: str


class Core:
    """`services.admission.core` with the limits that the service has by default."""

    def __init__(self, horizon_ms: float) -> None:
        self.admission = Admission(Policy())
        self._contract = Contract(ServiceClass.C1_INTERACTIVE, horizon_ms=horizon_ms)

    def ask(
        self,
        move_id: str,
        source: str,
        targets: Iterable[str],
        size_bytes: int,
        now_s: float,
        purpose: MovePurpose = MovePurpose.SESSION,
    ) -> MoveAnswer:
        """As the desk asks."""
        request = MoveRequest(
            move_id=move_id,
            session_id=move_id,
            epoch=EPOCH,
            contract=self._contract,
            source_node_id=source,
            targets=tuple(MoveTarget(target, slots_free=SLOTS_FREE) for target in targets),
            extent_bytes=size_bytes,
            topology_hash=flat_layout("state", size_bytes).topology_hash,
            purpose=purpose,
        )
        return self.admission.admit_move(request, f"ticket-{move_id}", now_s, CLIENT)

    def end(self, move_id: str, sample: TransferSample | None, now_s: float) -> None:
        """A move is over; without a sample nothing was measured."""
        measured = sample is not None
        report = MoveReport("", move_id, sample, measured, measured, "")
        self.admission.finish_move(report, now_s)

    def hear(self, entry: Mapping[str, Any]) -> Differing | None:
        """One line of a desk's log; the verdict where it is another one."""
        if entry["what"] != ASKED:
            measured = entry["transfer_ms"] > 0
            sample = (
                TransferSample(entry["size_bytes"], entry["transfer_ms"], entry["frozen_ms"])
                if measured
                else None
            )
            self.end(entry["move_id"], sample, entry["at_s"])
            return None
        answer = self.ask(
            entry["move_id"],
            entry["source"],
            entry["targets"],
            entry["size_bytes"],
            entry["at_s"],
            MovePurpose(entry["purpose"]),
        )
        real = _named(entry["verdict"], entry["target"])
        pure = _named(answer.verdict.label, answer.target.node_id)
        if real == pure:
            return None
        self._bring_back(entry)
        return Differing(entry["move_id"], real, pure, answer.verdict.explanation)

    def _bring_back(self, entry: Mapping[str, Any]) -> None:
        move_id, now_s = entry["move_id"], entry["at_s"]
        self.end(move_id, None, now_s)
        if entry["verdict"] != _ADMITTED:
            return
        target = MoveTarget(entry["target"], slots_free=SLOTS_FREE)
        running = RunningMove(
            ticket_id=f"ticket-{move_id}",
            move_id=move_id,
            session_id=move_id,
            epoch=EPOCH,
            source_node_id=entry["source"],
            target=target,
            extent_bytes=entry["size_bytes"],
            remaining_ms=_REMAINING_MS,
        )
        self.admission.relearn((running,), (), now_s)


@dataclass(frozen=True, slots=True)
class Replay:
    """How many verdicts were compared, and those that differ."""

    compared: int
    differing: tuple[Differing, ...]

    @property
    def agreement(self) -> float:
        """Share of verdicts that are the same, the receiver of an admitted move included."""
        return 1.0 - len(self.differing) / self.compared

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "compared": self.compared,
            "agreement": self.agreement,
            "differing": [asdict(each) for each in self.differing],
        }


def replay(result: Mapping[str, Any]) -> Replay:
    """All verdicts of a sweep again, those on probes and on the warm-up too."""
    core = Core(result["horizon_ms"])
    said = [core.hear(entry) for entry in result["log"]]
    compared = sum(entry["what"] == ASKED for entry in result["log"])
    return Replay(compared, tuple(each for each in said if each is not None))


def _named(label: str, target: str) -> str:
    return f"{label} to {target}" if label == _ADMITTED else label
