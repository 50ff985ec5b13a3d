"""Snapshot: what placement says of the whole cluster at one moment."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from worldline.cli.output import jsonable, move_jsonable
from worldline.sdk import Client, MoveRecord, Node, Progress, SessionInfo

#: Among how many of the newest moves rejects are looked for, and how many are shown.
_LOOKED_AT, REJECTS_MAX = 100, 5
#: More than a screen holds; a cluster has one move a wire under way.
_MOVES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a frame shows, in the order in which it is shown.

    `taken_s` is when placement answered, on the caller's monotonic clock. `trouble` is why it has
    not answered since; empty where it has.
    """

    placement_address: str
    taken_s: float | None = None
    nodes: tuple[Node, ...] = ()
    sessions: tuple[SessionInfo, ...] = ()
    #: Under way, the oldest first.
    moves: tuple[MoveRecord, ...] = ()
    #: Lately rejected, the newest first.
    rejects: tuple[MoveRecord, ...] = ()
    trouble: str = ""

    def after(self, trouble: str) -> Snapshot:
        """The same, from a placement that does not answer any more."""
        return replace(self, trouble=trouble)

    def jsonable(self, now_s: float) -> dict[str, Any]:
        """One line for machines. Durations are until `now_s`."""
        age_ms = None if self.taken_s is None else (now_s - self.taken_s) * 1e3
        return {
            "placement_address": self.placement_address,
            "trouble": self.trouble or None,
            "age_ms": age_ms,
            "nodes": jsonable(self.nodes),
            "sessions": jsonable(self.sessions),
            "moves": [
                {**move_jsonable(one), "progress": progress_jsonable(one.progress)}
                for one in self.moves
            ],
            "rejects": [move_jsonable(one) for one in self.rejects],
        }


async def take(client: Client, now_s: float) -> Snapshot:
    """Ask placement.

    Raises:
        Unavailable, DeadlineExceeded: it does not answer.
    """
    nodes, sessions = await client.nodes(), await client.sessions()
    moves = await client.moves(limit=_MOVES_MAX, under_way=True)
    recent = await client.moves(limit=_LOOKED_AT)
    rejects = [one for one in recent if one.outcome == "rejected"]
    return Snapshot(
        placement_address=client.placement_address,
        taken_s=now_s,
        nodes=tuple(sorted(nodes, key=lambda one: _natural(one.node_id))),
        sessions=sessions,
        moves=moves[::-1],
        rejects=tuple(rejects[:REJECTS_MAX]),
    )


def progress_jsonable(progress: Progress | None) -> dict[str, Any] | None:
    """How far a move is, with what follows from it."""
    if progress is None:
        return None
    return {
        **jsonable(progress),
        "rate_bytes_per_s": progress.rate_bytes_per_s,
        "remaining_ms": progress.remaining_ms,
    }


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """node-2 before node-10."""
    parts = re.findall(r"\d+|\D+", name)
    return tuple((int(one), "") if one.isdecimal() else (-1, one) for one in parts)
