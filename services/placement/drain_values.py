"""Drain values: what a drain is told and what it wants done. `services.placement.drain` decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from services.placement.records import SessionState

#: How long a move of a drain may wait for its wire, while its world plays: as long as tickets wait
#: for their ends. Longer, and it is asked for again, maybe to go elsewhere.
BULK_WAIT_MS = 60_000.0


class DrainState(Enum):
    """How far the drain of a node is; the value is the word on the wire and in the directory."""

    DRAINING = "draining"
    #: Nobody is left there.
    DRAINED = "drained"
    #: It ended, and somebody is.
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, slots=True)
class Why:
    """Why a session is still where it is; `retry_after_ms` 0: waiting does not cure it."""

    reason: str
    message: str
    retry_after_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Seat:
    """An engine that a session may go to. `pool` names the slots that it shares with others."""

    node_id: str
    engine_id: str
    pool: str


@dataclass(frozen=True, slots=True)
class Resident:
    """A session on a node that is drained, and where it may go, best first.

    `nowhere` says why there is no seat; only of a session that is live.
    """

    session_id: str
    node_id: str
    state: SessionState
    state_bytes: int
    seats: tuple[Seat, ...] = ()
    nowhere: Why | None = None


@dataclass(frozen=True, slots=True)
class View:
    """What directory, fleet and moves have now.

    `slots_free` counts by pool, moves under way taken off. `interactive_node_ids` are the ends of
    moves that somebody waits for; to `arriving_node_ids` something may still come that was under
    way when their drain began.
    """

    residents: tuple[Resident, ...]
    slots_free: Mapping[str, int]
    interactive_node_ids: frozenset[str] = frozenset()
    arriving_node_ids: frozenset[str] = frozenset()


# --- events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ordered:
    """Drain this node too, until `deadline_s` at most; repeated: with another deadline.

    `moved` is what the same drain has moved before a restart.
    """

    node_id: str
    deadline_s: float
    moved: int = 0


@dataclass(frozen=True, slots=True)
class Dropped:
    """Drain this node no more."""

    node_id: str


@dataclass(frozen=True, slots=True)
class Looked:
    """How things stand."""

    view: View


@dataclass(frozen=True, slots=True)
class Wired:
    """A session's move has its wire."""

    session_id: str


@dataclass(frozen=True, slots=True)
class Sent:
    """A session's move has given its wire back; it is not over yet."""

    session_id: str


@dataclass(frozen=True, slots=True)
class Committed:
    """A session's move is over, and the session elsewhere."""

    session_id: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """A session's move was refused; its world never stood still."""

    session_id: str
    why: Why


@dataclass(frozen=True, slots=True)
class Failed:
    """A session's move was rolled back."""

    session_id: str
    why: Why


Event = Ordered | Dropped | Looked | Wired | Sent | Committed | Rejected | Failed


# --- actions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """Begin a bulk move; one of the last four events ends it."""

    session_id: str
    source_node_id: str
    target_node_id: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Give a move up that has not got its wire yet."""

    session_id: str
    why: Why


@dataclass(frozen=True, slots=True)
class Conclude:
    """The drain of this node has ended so."""

    node_id: str
    state: DrainState


Action = Ask | Withdraw | Conclude


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, in order, and why."""

    actions: tuple[Action, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Left:
    """A session that is still on a node: where it goes, or why it does not."""

    session_id: str
    node_id: str
    state: SessionState
    target_node_id: str = ""
    why: Why | None = None
