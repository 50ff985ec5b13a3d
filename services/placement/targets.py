"""Target: a receiver that would do for a move, as admission is asked about it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from services.placement.choose import Candidate, Chosen
from services.placement.fleet import Fleet
from services.placement.values import Party
from worldline.errors import InvalidInput
from worldline.v1 import admission_pb2


class Target(NamedTuple):
    """One end that a move may have; `tier_dropped` when only T1 holds there.

    `slots_free` is before the moves under way, which admission counts itself;
    `digest_rate_bytes_per_s` is the host's, of all its nodes together, 0 where its device digests.
    """

    party: Party
    host_id: str
    slots_free: int
    tier_dropped: bool = False
    digest_rate_bytes_per_s: float = 0.0

    def to_proto(self) -> admission_pb2.MoveTarget:
        """The wire form."""
        return admission_pb2.MoveTarget(
            node_id=self.party.node_id,
            engine_id=self.party.engine_id,
            host_id=self.host_id,
            slots_free=self.slots_free,
            digest_rate_bytes_per_s=self.digest_rate_bytes_per_s,
        )


def target_of(chosen: Chosen, candidate: Candidate, fleet: Fleet) -> Target:
    """The chosen one with what admission needs to know of it."""
    return Target(
        party=fleet.party(chosen.engine_id),
        host_id=candidate.place.host_id,
        slots_free=candidate.slots_for_moves,
        tier_dropped=chosen.tier_dropped,
        digest_rate_bytes_per_s=candidate.digest_rate_bytes_per_s,
    )


def named_target(
    targets: tuple[Target, ...], answer: admission_pb2.AdmitMoveResponse
) -> Target | None:
    """The target that admission's answer names; None where it names none.

    Raises:
        InvalidInput: it names one that it was not asked about.
    """
    name = answer.target_node_id, answer.target_engine_id
    if name == ("", ""):
        return None
    for one in targets:
        if (one.party.node_id, one.party.engine_id) == name:
            return one
    raise InvalidInput(
        f"admission chose {name[1] or 'no engine'} on {name[0]}, which it was not asked about",
        field="target_engine_id",
    )
