"""Relearn: what an admission that has restarted must be told before it can grant anything. Pure.

It knows no hold and no path. What is under way is told by placement's own records, and by the
movers, which hold wires for moves that are in no record of ours too: probes, and other drivers'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from services.placement.move import Move
from services.placement.phases import Step
from services.placement.records import PathRecord
from worldline.v1 import admission_pb2

#: A wire says until when it may wait or hold, and not how long its lease is, which begins anew with
#: the go. Admission's shortest lease (`lease_min_ms`), three times: a stranger's move that is told
#: as longer than it lasts only keeps others waiting, and its end is told as any other's.
STRANGER_MARGIN_MS = 30_000
#: One day, above any age at which admission still believes a rate (`path_age_max_ms`).
PATH_AGE_MAX_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class OwnMove:
    """A move of this placement's; `age_ms` is its ticket's, 0 where nobody saw that issued."""

    move: Move
    extent_bytes: int
    age_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class WireSeen:
    """A move that holds a mover's wire or waits for one; `remaining_ms` 0: as long as it takes.

    `extent_bytes` is what it has at the mover that was asked, or the most that it can have.
    """

    ticket_id: str
    move_id: str
    source_node_id: str
    target_node_id: str
    remaining_ms: int
    extent_bytes: int


@dataclass(frozen=True, slots=True)
class RunningMove:
    """A move that has a ticket and has not ended; what is not known of a stranger's is empty."""

    ticket_id: str
    move_id: str
    source_node_id: str
    target_node_id: str
    remaining_ms: int
    extent_bytes: int
    session_id: str = ""
    epoch: int = 0
    target_engine_id: str = ""

    def to_proto(self, target_host_id: str) -> admission_pb2.RelearnRequest.RunningMove:
        """The wire form."""
        return admission_pb2.RelearnRequest.RunningMove(
            ticket_id=self.ticket_id,
            move_id=self.move_id,
            session_id=self.session_id,
            epoch=self.epoch,
            source_node_id=self.source_node_id,
            target_node_id=self.target_node_id,
            target_engine_id=self.target_engine_id,
            target_host_id=target_host_id,
            extent_bytes=self.extent_bytes,
            remaining_ms=self.remaining_ms,
        )


def what_runs(
    own: Iterable[OwnMove], known: frozenset[str], wires: Iterable[WireSeen]
) -> tuple[RunningMove, ...]:
    """The moves to tell, by ticket.

    `own` are this placement's open moves, and `known` the ids of all that were open at any time
    since the movers were asked, those among them: a wire of one that has ended meanwhile is no
    stranger's.
    """
    running = {
        one.move.ticket_id: _own(one)
        for one in own
        if one.move.ticket is not None and holds_wire(one.move)
    }
    for wire in wires:
        if wire.move_id in known:
            continue
        # Both ends report it, and the one knows more than the other.
        stranger, before = _stranger(wire), running.get(wire.ticket_id)
        if before is not None:
            stranger = replace(
                stranger,
                remaining_ms=max(before.remaining_ms, stranger.remaining_ms),
                extent_bytes=min(before.extent_bytes, stranger.extent_bytes),
            )
        running[wire.ticket_id] = stranger
    return tuple(running[ticket_id] for ticket_id in sorted(running))


def holds_wire(move: Move) -> bool:
    """Whether admission holds something for the move: a ticket, whose end is still to be told.

    That comes after everything at the target is done, whatever else is still to be settled.
    """
    return move.ticket is not None and not move.was_issued(Step.FINISH_TICKET)


def _own(one: OwnMove) -> RunningMove:
    move = one.move
    lasts_ms = 0.0 if move.ticket is None else move.ticket.lasts_ms
    return RunningMove(
        ticket_id=move.ticket_id,
        move_id=move.move_id,
        source_node_id=move.source.node_id,
        target_node_id=move.target.node_id,
        # A move that rolls back late still has its receiver busy.
        remaining_ms=max(1, round(lasts_ms - one.age_ms)),
        session_id=move.session_id,
        epoch=move.source_epoch,
        target_engine_id=move.target.engine_id,
        extent_bytes=one.extent_bytes,
    )


def _stranger(wire: WireSeen) -> RunningMove:
    return RunningMove(
        ticket_id=wire.ticket_id,
        move_id=wire.move_id,
        source_node_id=wire.source_node_id,
        target_node_id=wire.target_node_id,
        remaining_ms=wire.remaining_ms + STRANGER_MARGIN_MS,
        extent_bytes=wire.extent_bytes,
    )


def relearn_request(
    running: Iterable[RunningMove],
    paths: Iterable[PathRecord],
    host_ids: Mapping[str, str],
    unix_s: float,
) -> admission_pb2.RelearnRequest:
    """The message: `host_ids` by node, `unix_s` is now on the clock of the paths' records.

    Paths that were used longer ago than anybody believes them are left out.
    """
    aged = [(one, max(0, round((unix_s - one.changed_unix_s) * 1e3))) for one in paths]
    return admission_pb2.RelearnRequest(
        moves=[one.to_proto(host_ids.get(one.target_node_id, "")) for one in running],
        paths=[
            admission_pb2.PathRate(
                source_node_id=one.source_node_id,
                target_node_id=one.target_node_id,
                rate_bytes_per_s=one.rate_bytes_per_s,
                setup_ms=one.setup_ms,
                samples=one.samples,
                age_ms=age_ms,
            )
            for one, age_ms in aged
            if age_ms <= PATH_AGE_MAX_MS
        ],
    )
