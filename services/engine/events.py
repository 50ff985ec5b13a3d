"""Events of a world and the effects its core asks for. Plain frozen values, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass

from services.engine.world import Action
from worldline.errors import WorldlineError


@dataclass(frozen=True)
class Opened:
    """The slot is mapped and the first state written."""


@dataclass(frozen=True)
class ActionArrived:
    """The client sent the action of one block; a replay also says how many steps it had."""

    action: Action
    steps: int = 0


@dataclass(frozen=True)
class StreamEnded:
    """The client's stream is over: its actions that no block was begun for are forgotten.

    The client sends them again where it joins next, so they would count twice.
    """


@dataclass(frozen=True)
class Dispatched:
    """The schedule gave this world its first quantum of a block, of full quality or less."""

    degraded: bool = False


@dataclass(frozen=True)
class BlockDone:
    """The last quantum of the block returned; the state is at a boundary.

    Its quanta took `block_s`, where measured rows say `expected_s`; 0 where there is no row.
    """

    block_s: float = 0.0
    expected_s: float = 0.0


@dataclass(frozen=True)
class BlockFailed:
    """A quantum raised: the state is half rewritten and nobody may continue from it."""

    error: WorldlineError


@dataclass(frozen=True)
class FreezeAsked:
    """Placement wants the world to stop at the next boundary, for this move."""

    epoch: int
    move_id: str


@dataclass(frozen=True)
class ThawAsked:
    """Placement says that this move did not commit."""

    epoch: int
    move_id: str


@dataclass(frozen=True)
class ActivateAsked:
    """Placement says that this engine owns the world from `epoch` on."""

    move_id: str
    epoch: int


@dataclass(frozen=True)
class DetachAsked:
    """Placement says: drop it. With `engine_address`, the world lives there in `epoch`.

    `suspended`: it lives nowhere, until somebody resumes it.
    """

    move_id: str
    engine_address: str = ""
    epoch: int = 0
    suspended: bool = False


@dataclass(frozen=True)
class CloseAsked:
    """The session is over."""

    epoch: int


@dataclass(frozen=True)
class OwnershipLost:
    """The directory says that another owner or nobody holds this session."""


@dataclass(frozen=True)
class AskTimerFired:
    """Time to look whether placement has been silent for too long about a move."""


@dataclass(frozen=True)
class MoveAnswered:
    """Placement's directory says how far the move got."""

    move_id: str
    outcome: MoveOutcome


@dataclass(frozen=True)
class MoveOutcome:
    """What a move record means for the two engines: it committed, it ended, or neither yet.

    `over`: it committed, and placement has given up on telling engines that it could not reach.
    `suspended`: what committed is that the world lives nowhere until it is resumed.
    """

    committed: bool = False
    ended: bool = False
    over: bool = False
    suspended: bool = False


Event = (
    Opened
    | ActionArrived
    | StreamEnded
    | Dispatched
    | BlockDone
    | BlockFailed
    | FreezeAsked
    | ThawAsked
    | ActivateAsked
    | DetachAsked
    | CloseAsked
    | OwnershipLost
    | AskTimerFired
    | MoveAnswered
)


@dataclass(frozen=True)
class AskMove:
    """Effect: ask placement what became of the move."""

    move_id: str


@dataclass(frozen=True)
class EndWorld:
    """Effect: end the client's stream with this ending and unmap the slot, in this order."""

    ending: Ending


@dataclass(frozen=True)
class Ending:
    """Why a world is no longer here: it moved to an address, or an error says why.

    `at_once`: without the block in flight, because the slot may be another's by now. `failed`: a
    block of it failed, and nobody can continue from the half of it.
    """

    engine_address: str = ""
    epoch: int = 0
    error: WorldlineError | None = None
    at_once: bool = False
    failed: bool = False


Effect = AskMove | EndWorld
