"""Drain: a node's drain as a client sees it; parsed once, frozen."""

from __future__ import annotations

from dataclasses import dataclass

from worldline.v1 import placement_pb2


@dataclass(frozen=True, slots=True)
class LeftSession:
    """A session that is still on the node.

    `target_node_id` and `move_id` are of its move, empty while it waits; then `reason` and
    `message` say why, and `retry_after_ms` when it is asked for again, 0: not for a time.
    """

    session_id: str
    state: str
    target_node_id: str
    move_id: str
    reason: str
    message: str
    retry_after_ms: int


@dataclass(frozen=True, slots=True)
class DrainRecord:
    """How far the drain of a node is: `state` is draining, drained or incomplete.

    `sessions_moved` counts the sessions that the drain moved, not those that left by themselves;
    `remaining_ms` is the time until its deadline, `rounds_left` how many moves its nodes have to
    make one after the other, as planned now.
    """

    node_id: str
    state: str
    sessions_moved: int
    elapsed_ms: int
    remaining_ms: int
    rounds_left: int
    left: tuple[LeftSession, ...]

    @property
    def ended(self) -> bool:
        """Whether nothing more is moved."""
        return self.state != "draining"

    @property
    def drained(self) -> bool:
        """Whether nobody was left when it ended."""
        return self.state == "drained"


def drain_from_proto(message: placement_pb2.DrainRecord) -> DrainRecord:
    """Parse once, at the edge."""
    return DrainRecord(
        node_id=message.node_id,
        state=message.state,
        sessions_moved=message.sessions_moved,
        elapsed_ms=message.elapsed_ms,
        remaining_ms=message.remaining_ms,
        rounds_left=message.rounds_left,
        left=tuple(
            LeftSession(
                session_id=one.session_id,
                state=one.state,
                target_node_id=one.target_node_id,
                move_id=one.move_id,
                reason=one.reason,
                message=one.message,
                retry_after_ms=one.retry_after_ms,
            )
            for one in message.left
        ),
    )
