"""Wire asks: what a move asks a node's wires for, and what it is told. Pure values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from worldline.errors import InvalidInput
from worldline.fields import identifier, non_negative


class WireDirection(Enum):
    """Which of a node's two ways."""

    INTO = "into"
    OUT_OF = "out_of"

    @property
    def opposite(self) -> WireDirection:
        """The other one."""
        return WireDirection.OUT_OF if self is WireDirection.INTO else WireDirection.INTO


@dataclass(frozen=True, slots=True)
class WireAsk:
    """One move that asks for a wire of this node. `wire_id` is its ticket's id.

    It must have committed before `deadline_s` (own monotonic clock; infinite: no deadline), and is
    charged `move_s` from its grant on. It is expected to hold the wire for `wire_s`. `bulk` waits
    for everything that is not, whatever the deadlines.

    Raises:
        InvalidInput: a duration that is none.
    """

    wire_id: str
    direction: WireDirection
    peer_node_id: str
    bulk: bool
    deadline_s: float
    move_s: float
    wire_s: float

    def __post_init__(self) -> None:
        identifier(self.wire_id, "wire_id")
        identifier(self.peer_node_id, "peer_node_id")
        if math.isnan(self.deadline_s):
            raise InvalidInput("deadline_s must be a number", field="deadline_s")
        non_negative(self.move_s, "move_s")
        non_negative(self.wire_s, "wire_s")

    @property
    def before_s(self) -> float:
        """Granted from then on, it would be late."""
        return self.deadline_s - self.move_s

    @property
    def gives_way(self) -> bool:
        """Whether it loses a turn that its peer has not granted yet to whoever is not bulk.

        A probe has no deadline and is bulk, but measures for somebody who waits.
        """
        return self.bulk and not math.isinf(self.deadline_s)

    def in_time(self, granted_s: float) -> bool:
        """Condition (1) of the paper (section 3) with what is left of the horizon."""
        return granted_s + self.move_s < self.deadline_s


@dataclass(frozen=True, slots=True)
class Granted:
    """The wire is this one's, until it is given back."""

    wire_id: str


@dataclass(frozen=True, slots=True)
class Refused:
    """It would get the wire too late. Why, in milliseconds: `waited_ms`, `would_wait_ms` more,
    `may_wait_ms` more (negative when it is too late already), `ahead` of it so many,
    `retry_after_ms`."""

    wire_id: str
    numbers: dict[str, float]


@dataclass(frozen=True, slots=True)
class WireStanding:
    """One that holds a wire or waits for it. An unconfirmed turn holds the egress and waits still.

    `remaining_s`: until its deadline; infinite where there is none.
    """

    ask: WireAsk
    held: bool
    waited_s: float
    remaining_s: float
