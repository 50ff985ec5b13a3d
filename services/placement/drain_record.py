"""Drain record: what the directory keeps of a node's drain, and what clients see of it.

Wall time is kept because a drain outlives its process: its deadline is a duration on the clock of
the one machine that has the directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.placement.drain_values import DrainState, Left
from worldline.v1 import placement_pb2


@dataclass(frozen=True, slots=True)
class DrainRecord:
    """The drain of one node: under way while `ended_unix_s` is None.

    `moved` counts the sessions that it moved; `left` are those that were there when it ended.
    """

    node_id: str
    state: DrainState
    began_unix_s: float
    deadline_unix_s: float
    ended_unix_s: float | None = None
    moved: int = 0
    left: tuple[Left, ...] = ()

    def remaining_s(self, now_unix_s: float) -> float:
        """Until its deadline; never more than it had in all, whatever became of the clock."""
        whole_s = self.deadline_unix_s - self.began_unix_s
        return min(max(0.0, self.deadline_unix_s - now_unix_s), whole_s)


@dataclass(frozen=True, slots=True)
class DrainReport:
    """A record with what is known of it beside: who is left, in which moves, in how many rounds."""

    record: DrainRecord
    left: tuple[Left, ...]
    #: By session.
    move_ids: Mapping[str, str]
    rounds_left: int

    @property
    def gist(self) -> object:
        """All that is worth another look: without what changes with the time alone."""
        left = tuple(
            (one.session_id, one.state, one.target_node_id, one.why and one.why.reason)
            for one in self.left
        )
        return self.record, left, dict(self.move_ids), self.rounds_left

    def to_proto(self, now_unix_s: float) -> placement_pb2.DrainRecord:
        """The wire form; durations, because clocks differ."""
        record = self.record
        until_s = now_unix_s if record.ended_unix_s is None else record.ended_unix_s
        under_way = record.state is DrainState.DRAINING
        return placement_pb2.DrainRecord(
            node_id=record.node_id,
            state=record.state.value,
            sessions_moved=record.moved,
            elapsed_ms=round(max(0.0, until_s - record.began_unix_s) * 1e3),
            remaining_ms=round(record.remaining_s(now_unix_s) * 1e3) if under_way else 0,
            rounds_left=self.rounds_left,
            left=[self._left(one) for one in self.left],
        )

    def _left(self, one: Left) -> placement_pb2.DrainRecord.Left:
        message = placement_pb2.DrainRecord.Left(
            session_id=one.session_id,
            state=one.state.value,
            target_node_id=one.target_node_id,
            move_id=self.move_ids.get(one.session_id, ""),
        )
        if one.why is not None:
            message.reason = one.why.reason
            message.message = one.why.message
            message.retry_after_ms = round(one.why.retry_after_ms)
        return message
