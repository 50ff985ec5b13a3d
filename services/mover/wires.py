"""Wires: who may use this node's ingress and its egress, and when. Pure.

The receiver decides who sends to it, as in receiver-driven transports, one whole move at a time:

- A source asks and sends nothing before it is granted (pHost's request to send, Gao et al., CoNEXT
  2015; ExpressPass's credits, Cho et al., SIGCOMM 2017), so moves never meet in the receiver, which
  is where they lose their rate (paper, section 6.3).
- The receiver grants in an order of its own (Homa, Montazeri et al., SIGCOMM 2018, by what is left
  of a message; NDP's pull queue, Handley et al., SIGCOMM 2017): here by deadline, because what
  counts is a horizon and not the mean (Jackson's rule; Liu and Layland, JACM 1973).
- A grant that a busy sender cannot use wastes the receiver. Homa overcommits against it, pHost lets
  tokens expire. Here a source takes its own egress first and offers only then.

A wire is held until it is given back: nobody is interrupted. One that waits is refused as soon as
it can no longer be in time, because its world still runs and may be sent elsewhere.

**No duplex pair**: two moves between the same two nodes in opposite ways never run at once. Both
ends see both ways, each with a delay; so the node whose name sorts first decides for the pair: from
its own turn on it grants the other nothing, and while it has granted it takes no turn. The other
node does not wait for the first with a turn that nobody has granted, or both would wait for ever.
Egress before pair before ingress: whoever waits, waits for somebody further on, and who holds all
three waits for nobody.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from services.mover.wireask import Granted, Refused, WireAsk, WireDirection, WireStanding
from services.mover.wireforecast import Waiting, expected_end_s, starts_s
from worldline.errors import InvalidInput, InvariantBroken

__all__ = ["Granted", "Refused", "WireAsk", "WireDirection", "WireStanding", "Wires"]

#: An estimate that changes all the time is looked at again after this at the soonest.
_LOOK_AGAIN_S = 0.001


@dataclass(slots=True)
class _Wire:
    ask: WireAsk
    asked_s: float
    number: int
    #: When it got its wire, at the peer too; None while that is still to come.
    began_s: float | None = None
    #: Whether this node's end is taken.
    taken: bool = False

    @property
    def order(self) -> tuple[bool, float, int]:
        return self.ask.bulk, self.ask.deadline_s, self.number

    def until_s(self, now_s: float) -> float:
        """When it is expected to give back what it has taken: at the soonest, while unconfirmed."""
        if self.began_s is None:
            return now_s + self.ask.wire_s
        return expected_end_s(self.began_s, self.ask.wire_s, now_s)


class Wires:
    """The wires of one node."""

    def __init__(self, node_id: str, *, into_max: int = 1, out_of_max: int = 1) -> None:
        self._node_id = node_id
        self._caps = {WireDirection.INTO: into_max, WireDirection.OUT_OF: out_of_max}
        self._wires: dict[str, _Wire] = {}
        self._asked = 0
        self._next_s: float | None = None

    def ask(self, ask: WireAsk, now_s: float) -> None:
        """Queue; the next `decide` says what becomes of it.

        Raises:
            InvalidInput: to or from this very node.
            InvariantBroken: it has asked before and has not ended.
        """
        if ask.peer_node_id == self._node_id:
            raise InvalidInput(f"node {self._node_id} has no wire to itself", field="peer_node_id")
        if ask.wire_id in self._wires:
            raise InvariantBroken(f"wire {ask.wire_id} was asked for twice")
        self._asked += 1
        self._wires[ask.wire_id] = _Wire(ask, now_s, self._asked)
        self._next_s = now_s

    def confirm(self, wire_id: str, now_s: float) -> None:
        """The peer has granted a wire out of this node; nothing where it has ended."""
        wire = self._wires.get(wire_id)
        if wire is not None and wire.taken and wire.began_s is None:
            wire.began_s = now_s
            self._next_s = now_s

    def end(self, wire_id: str, now_s: float) -> None:
        """Done, failed or withdrawn, waiting or holding; repeating it changes nothing."""
        if self._wires.pop(wire_id, None) is not None:
            self._next_s = now_s if self._wires else None

    def decide(self, now_s: float) -> tuple[Granted | Refused, ...]:
        """Grant what may be granted now, refuse what can no longer be in time.

        Refused is also bulk that has its turn out of here and waits for its peer's grant, where
        somebody interactive waits for that turn: nothing of it has begun yet.
        """
        refused = list(self._recall(now_s))
        granted = [Granted(wire.ask.wire_id) for wire in self._grant(now_s)]
        self._next_s = None
        for direction in WireDirection:
            refused += self._forecast(direction, now_s)
        return (*granted, *refused)

    def next_decision_s(self) -> float | None:
        """When `decide` may have something new to say without an event; None: never."""
        return self._next_s

    @property
    def held_count(self) -> int:
        """How many hold an end of this node, confirmed or not."""
        return sum(wire.taken for wire in self._wires.values())

    @property
    def waiting_count(self) -> int:
        """How many wait for an end of this node."""
        return len(self._wires) - self.held_count

    def standings(self, now_s: float) -> tuple[WireStanding, ...]:
        """Everybody, in the order of asking."""
        return tuple(
            WireStanding(
                wire.ask,
                held=wire.began_s is not None,
                waited_s=(now_s if wire.began_s is None else wire.began_s) - wire.asked_s,
                remaining_s=wire.ask.deadline_s - now_s,
            )
            for wire in self._wires.values()
        )

    # --- decisions -----------------------------------------------------------------------------

    def _recall(self, now_s: float) -> Iterable[Refused]:
        """Turns out of here that bulk holds and cannot use yet, as many as keep others waiting."""
        out_of = WireDirection.OUT_OF
        free = self._caps[out_of] - len(self._taken(out_of))
        urgent = [
            wire
            for wire in self._waiting(out_of)
            if not wire.ask.bulk and wire.ask.in_time(now_s) and not self._opposed(wire.ask)
        ]
        idle = [wire for wire in self._taken(out_of) if wire.began_s is None and wire.ask.gives_way]
        # The latest deadline can wait longest for another turn.
        idle.sort(key=lambda wire: wire.order, reverse=True)
        for wire in idle[: max(0, len(urgent) - free)]:
            del self._wires[wire.ask.wire_id]
            yield _refused(wire, now_s + max(each.ask.wire_s for each in urgent), 1, now_s)

    def _grant(self, now_s: float) -> Iterable[_Wire]:
        """In order, over both directions: the earlier deadline of a pair goes first."""
        for wire in sorted(self._waiting(), key=lambda each: each.order):
            ask = wire.ask
            is_free = len(self._taken(ask.direction)) < self._caps[ask.direction]
            if is_free and ask.in_time(now_s) and not self._opposed(ask):
                wire.taken = True
                # The receiver's word is the last one; a turn out of here waits for the peer's.
                wire.began_s = now_s if ask.direction is WireDirection.INTO else None
                yield wire

    def _forecast(self, direction: WireDirection, now_s: float) -> list[Refused]:
        """Refuse who would come too late, and note when to look again at the others."""
        queue = sorted(self._waiting(direction), key=lambda each: each.order)
        held = [wire.until_s(now_s) for wire in self._taken(direction)]
        waiting = [Waiting(wire.ask, self._ready_s(wire.ask, now_s)) for wire in queue]
        refused = []
        for wire, start_s in zip(
            queue, starts_s(waiting, held, self._caps[direction], now_s), strict=True
        ):
            if wire.ask.in_time(start_s):
                self._look_again(wire.ask.before_s - start_s, now_s)
                continue
            ahead = len(held) + sum(each.order < wire.order for each in queue)
            refused.append(_refused(wire, start_s, ahead, now_s))
            del self._wires[wire.ask.wire_id]
        return refused

    def _look_again(self, slack_s: float, now_s: float) -> None:
        """Estimates stand still until somebody is overdue, and then grow twice as fast as time."""
        if math.isinf(slack_s):
            return
        ends_s = [wire.until_s(now_s) for wire in self._wires.values() if wire.taken]
        standing = all(
            wire.began_s is not None and now_s < wire.began_s + wire.ask.wire_s
            for wire in self._wires.values()
            if wire.taken
        )
        still_s = min(ends_s) if standing and ends_s else now_s
        at_s = max(still_s + slack_s / 2, now_s + _LOOK_AGAIN_S)
        self._next_s = at_s if self._next_s is None else min(self._next_s, at_s)

    def _ready_s(self, ask: WireAsk, now_s: float) -> float:
        return max((wire.until_s(now_s) for wire in self._opposed(ask)), default=now_s)

    def _opposed(self, ask: WireAsk) -> list[_Wire]:
        """The wires of the same pair the other way, for whose end this one waits."""
        there = [
            wire
            for wire in self._taken(ask.direction.opposite)
            if wire.ask.peer_node_id == ask.peer_node_id
        ]
        decides = self._node_id < ask.peer_node_id
        return [wire for wire in there if decides or wire.began_s is not None]

    def _waiting(self, direction: WireDirection | None = None) -> list[_Wire]:
        return [
            wire
            for wire in self._wires.values()
            if not wire.taken and direction in (None, wire.ask.direction)
        ]

    def _taken(self, direction: WireDirection) -> list[_Wire]:
        return [
            wire for wire in self._wires.values() if wire.taken and wire.ask.direction is direction
        ]


def _refused(wire: _Wire, start_s: float, ahead: int, now_s: float) -> Refused:
    would_wait_s = start_s - now_s
    return Refused(
        wire.ask.wire_id,
        {
            "waited_ms": (now_s - wire.asked_s) * 1e3,
            "would_wait_ms": would_wait_s * 1e3,
            "may_wait_ms": (wire.ask.before_s - now_s) * 1e3,
            "move_ms": wire.ask.move_s * 1e3,
            "ahead": float(ahead),
            "retry_after_ms": max(1.0, math.ceil(would_wait_s * 1e3)),
        },
    )
