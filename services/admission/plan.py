"""Plan: the interval in which one move would have the wire to one receiver, if any is in time.

Moves under way keep what was planned for them. An interactive move is planned as if waiting bulk
were not there: bulk gives way, and is planned again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from services.admission.calendar import FREE, Interval, Resource, earliest_begin_s, resource
from services.admission.holds import Hold, HoldBook
from services.admission.policy import Policy
from services.admission.requests import MoveTarget
from worldline.verdict import RejectReason


class Wish(NamedTuple):
    """What is to be planned: the wire to one receiver, for `length_s`.

    `rate_bytes_per_s` is what its bytes arrive, and so must be digested, at.
    """

    target: MoveTarget
    length_s: float
    rate_bytes_per_s: float

    @property
    def verified_at_once(self) -> int:
        """K* = B_crc / B_wire, the moves that the host's digests keep up with (section 6.5)."""
        return max(1, int(self.target.digest_rate_bytes_per_s / self.rate_bytes_per_s))


#: A resource with the reason that a reject for it bears.
Named = tuple[RejectReason, Resource]


class Needs:
    """What moves out of one node need, as it is booked: the sender's part is looked at once.

    `but` leaves one ticket out: a hold is never in its own way.
    """

    def __init__(
        self,
        source_node_id: str,
        holds: HoldBook,
        policy: Policy,
        now_s: float,
        *,
        bulk: bool,
        but: str = "",
    ) -> None:
        self._source = source_node_id
        self._holds = holds
        self._policy = policy
        self._now_s = now_s
        self._bulk = bulk
        self._but = but
        self.sender = self._booked(holds.out_of(source_node_id), policy.fan_out_max)

    def of(self, wish: Wish) -> list[Named]:
        """All that the move needs at once, in the order in which a reject names them."""
        holds, target = self._holds, wish.target
        into = self._booked(holds.into(target.node_id), self._policy.fan_in_max)
        wanted = [(RejectReason.RECEIVER_BUSY, into), (RejectReason.SENDER_BUSY, self.sender)]
        opposite = holds.between(target.node_id, self._source)
        if opposite:
            # Of two opposite moves one starves (paper, section 6.2). Those that are planned never
            # overlap, so that one more than there are at once is one too many.
            wanted.append((RejectReason.DUPLEX_PAIR, self._booked(opposite, 1)))
        if target.host_id and target.digest_rate_bytes_per_s > 0:
            verified = self._booked(holds.on_host(target.host_id), wish.verified_at_once)
            wanted.append((RejectReason.VERIFIER_BUSY, verified))
        return wanted

    def _booked(self, held: Sequence[Hold], capacity: int) -> Resource:
        if not held:
            return FREE
        planned = [
            (one.wire, one.deadline_s)
            for one in held
            if one.claims.ticket_id != self._but
            and (self._bulk or not _gives_way(one, self._now_s))
        ]
        return resource(planned, capacity, self._now_s)


def plan_wire(wanted: list[Named], length_s: float, now_s: float) -> Interval:
    """The first interval of that length in which all of them are free, from now on."""
    begin_s = earliest_begin_s([each for _, each in wanted], length_s, now_s)
    return Interval(begin_s, begin_s + length_s)


def in_the_way(
    wanted: list[Named], length_s: float, now_s: float, latest_begin_s: float
) -> RejectReason:
    """Which of them alone makes the move too late; the first where only all together do."""
    for reason, each in wanted:
        if earliest_begin_s((each,), length_s, now_s) > latest_begin_s:
            return reason
    return next(reason for reason, each in wanted if each.booked)


def _gives_way(hold: Hold, now_s: float) -> bool:
    return hold.claims.bulk and hold.waits(now_s)
