"""Events and actions of a move: what goes into the machine and what comes out.

Every completion carries the attempt of the step that it completes, so that a repeated or late
one can be told from the one that is awaited.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.placement.phases import Goal, Outcome, Step
from services.placement.values import Failure, Party, PushFigures, SlotName, Ticket
from worldline.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Run:
    """Action: do this step and report its completion with this attempt."""

    step: Step
    attempt: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Action: stop waiting for this step. Whether it took effect at the peer is unknown."""

    step: Step
    attempt: int


Action = Run | Cancel


@dataclass(frozen=True, slots=True)
class Begin:
    """The move's record is durable: go."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The client asks the move to go as far as `goal`."""

    goal: Goal


@dataclass(frozen=True, slots=True)
class RollbackAsked:
    """Somebody who may gives the move up; `failure` says who and why."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The phase's deadline is behind us."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """Admission signed a ticket for a move to that target, where the tier may have to drop.

    `warm`: the target's engine is known to be warm for this world already.
    """

    attempt: int
    ticket: Ticket
    verdict: Verdict
    target: Party
    tier_dropped: bool
    warm: bool = False
    step: Step = Step.ASK_ADMISSION


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer of no: by admission, by the probe's admission, by a full target, or by a mover at
    which the move waited for its wire in vain.

    `target` is the candidate that the verdict's numbers are of, where admission named one.
    """

    attempt: int
    step: Step
    verdict: Verdict
    target: Party | None = None


@dataclass(frozen=True, slots=True)
class Probed:
    """The path has been measured."""

    attempt: int
    step: Step = Step.PROBE


@dataclass(frozen=True, slots=True)
class Reserved:
    """The target's mover holds a SHADOW slot for us."""

    attempt: int
    reservation_id: str
    slot: SlotName
    step: Step = Step.RESERVE


@dataclass(frozen=True, slots=True)
class Warmed:
    """The target's engine has its weights and its first-block transient behind it."""

    attempt: int
    step: Step = Step.WARM


@dataclass(frozen=True, slots=True)
class Armed:
    """Both movers are ready and the wire is granted: after the freeze only bytes move."""

    attempt: int
    step: Step = Step.ARM


@dataclass(frozen=True, slots=True)
class Frozen:
    """The source stands at a block boundary."""

    attempt: int
    slot: SlotName
    block_index: int
    step: Step = Step.FREEZE


@dataclass(frozen=True, slots=True)
class Pushed:
    """All bytes landed, and the target's receipt agrees with the source's digests."""

    attempt: int
    source_digest: int
    target_digest: int
    figures: PushFigures
    step: Step = Step.PUSH


@dataclass(frozen=True, slots=True)
class VerifiedEqual:
    """The staged bytes, read back at rest, are the source's.

    Where the goal is the commit, their slot is LIVE now and no longer reaped with its reservation.
    """

    attempt: int
    target_digest: int
    step: Step = Step.VERIFY


@dataclass(frozen=True, slots=True)
class VerifiedUnequal:
    """The staged bytes, read back at rest, are not the source's."""

    attempt: int
    failure: Failure
    step: Step = Step.VERIFY


@dataclass(frozen=True, slots=True)
class Attached:
    """The target's engine holds the world in the staged slot and generates nothing."""

    attempt: int
    step: Step = Step.ATTACH


@dataclass(frozen=True, slots=True)
class CommitRecorded:
    """The directory swapped the owner."""

    attempt: int
    step: Step = Step.RECORD_COMMIT


@dataclass(frozen=True, slots=True)
class CommitLost:
    """The directory did not swap the owner, and never will for this move."""

    attempt: int
    failure: Failure
    step: Step = Step.RECORD_COMMIT


@dataclass(frozen=True, slots=True)
class Settled:
    """An obligation came to its end."""

    attempt: int
    step: Step
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Failed:
    """A step before the commit failed; whether it took effect may be unknown."""

    attempt: int
    step: Step
    failure: Failure


Completion = (
    Admitted
    | Refused
    | Probed
    | Reserved
    | Warmed
    | Armed
    | Frozen
    | Pushed
    | VerifiedEqual
    | VerifiedUnequal
    | Attached
    | CommitRecorded
    | CommitLost
    | Settled
    | Failed
)
Event = Begin | Asked | RollbackAsked | DeadlinePassed | Completion
