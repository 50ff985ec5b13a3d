"""Move state: a move as far as it has got, and the draft in which its next state takes shape."""

from __future__ import annotations

from dataclasses import dataclass, replace

from services.placement import events as ev
from services.placement.limits import Limits
from services.placement.phases import BEFORE_COMMIT, Goal, MovePhase, Step
from services.placement.values import Failure, Party, PushFigures, SlotName, Ticket
from worldline.verdict import Verdict

Issue = tuple[Step, int]


@dataclass(frozen=True, slots=True)
class Move:
    """A move as far as it has got; `deadline_s` is on the caller's monotonic clock."""

    move_id: str
    session_id: str
    source: Party
    #: The best candidate until admission has chosen one.
    target: Party
    #: The epoch that the move starts from; a commit makes it one more.
    source_epoch: int
    goal: Goal
    phase: MovePhase = MovePhase.REQUESTED
    deadline_s: float | None = None
    #: Every attempt of every step so far, and those whose completion is awaited.
    issued: frozenset[Issue] = frozenset()
    pending: frozenset[Issue] = frozenset()
    #: Nodes to which the path was measured for this move.
    probed: tuple[str, ...] = ()
    #: The tier is dropped to T1 with the commit.
    tier_dropped: bool = False
    #: The target's engine was warm for this world when the move was admitted.
    target_warm: bool = False
    #: The staged bytes were found to differ: this copy can never be installed.
    unequal: Failure | None = None
    verdict: Verdict | None = None
    failure: Failure | None = None
    #: An obligation towards the world itself could not be met: it runs nowhere.
    lost: bool = False
    ticket: Ticket | None = None
    reservation_id: str = ""
    source_slot: SlotName | None = None
    target_slot: SlotName | None = None
    block_index: int = 0
    source_digest: int = 0
    target_digest: int = 0
    figures: PushFigures | None = None
    story: tuple[str, ...] = ()

    @property
    def ticket_id(self) -> str:
        """The ticket's name; empty before there is one."""
        return "" if self.ticket is None else self.ticket.ticket_id

    @property
    def wait_s(self) -> float:
        """How long the move may wait for its wire."""
        return 0.0 if self.ticket is None else self.ticket.wait_ms / 1e3

    @property
    def resting(self) -> bool:
        """Waits for its client's next verb."""
        return self.phase in BEFORE_COMMIT and not self.pending and bool(self.issued)

    def was_issued(self, step: Step) -> bool:
        """Whether the step may have taken effect."""
        return any(issued is step for issued, _ in self.issued)

    def awaits(self, step: Step) -> bool:
        """Whether an attempt of the step is under way."""
        return any(pending is step for pending, _ in self.pending)

    @property
    def commit_undecided(self) -> bool:
        """The directory is deciding: nobody else may."""
        return self.awaits(Step.RECORD_COMMIT)


@dataclass(frozen=True, slots=True)
class Transition:
    """What one event did: `reason` says it in words, for logs and for the story."""

    move: Move
    actions: tuple[ev.Action, ...]
    reason: str
    #: Phases that the move went to, in order: one event may take it through more than one.
    entered: tuple[MovePhase, ...] = ()


class Draft:
    """The next move in the making: collects changes and actions in order."""

    def __init__(self, move: Move) -> None:
        self.move = move
        self.actions: list[ev.Action] = []
        self.entered: list[MovePhase] = []

    def set(self, **changes: object) -> None:
        """Change fields."""
        self.move = replace(self.move, **changes)  # type: ignore[arg-type]

    def enter(self, phase: MovePhase) -> None:
        """Go to a phase."""
        self.set(phase=phase)
        self.entered.append(phase)

    def run(self, *steps: Step) -> None:
        """Issue a further attempt of each step."""
        for one in steps:
            attempt = 1 + sum(1 for issued, _ in self.move.issued if issued is one)
            issue = (one, attempt)
            self.set(
                issued=self.move.issued | {issue},
                pending=self.move.pending | {issue},
            )
            self.actions.append(ev.Run(one, attempt))

    def cancel_all(self) -> None:
        """Stop waiting for everything under way."""
        for one, attempt in sorted(self.move.pending, key=_issue_order):
            self.actions.append(ev.Cancel(one, attempt))
        self.set(pending=frozenset())

    def finish(
        self, reason: str, before: Move, event: ev.Event, now: float, limits: Limits
    ) -> Transition:
        """Stamp the deadline where the phase or its rest began, and tell the story."""
        move = self.move
        if move == before:
            return Transition(before, (), reason)
        if (move.phase, move.resting) != (before.phase, before.resting) or self.actions:
            limit = limits.of(move.phase, resting=move.resting, wait_s=move.wait_s)
            move = replace(move, deadline_s=None if limit is None else now + limit)
        line = f"{before.phase.name} {type(event).__name__} -> {move.phase.name}: {reason}"
        told = replace(move, story=(*move.story, line))
        return Transition(told, tuple(self.actions), reason, tuple(self.entered))


def _issue_order(issue: Issue) -> tuple[str, int]:
    return issue[0].name, issue[1]
