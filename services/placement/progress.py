"""Progress: how far a move under way is, for whoever watches."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from services.placement.move_task import MoveTask
from services.placement.phases import MovePhase
from worldline.v1 import move_pb2, placement_pb2


@dataclass(frozen=True, slots=True)
class Progress:
    """A phase that a move has entered; everything else is as it is now.

    `step` is the figure of the record's timings that runs, for `step_ms` so far; empty where none
    does.
    """

    move_id: str
    phase: MovePhase
    sent_bytes: int
    total_bytes: int
    step: str
    step_ms: float
    elapsed_ms: float
    wait_max_ms: float

    def to_proto(self) -> placement_pb2.MoveProgress:
        """The wire form."""
        return placement_pb2.MoveProgress(
            move_id=self.move_id,
            phase=move_pb2.MovePhase.Name(int(self.phase)),
            sent_bytes=self.sent_bytes,
            total_bytes=self.total_bytes,
            step=self.step,
            step_ms=self.step_ms,
            elapsed_ms=self.elapsed_ms,
            wait_max_ms=self.wait_max_ms,
        )


def progress_of(task: MoveTask, phase: MovePhase | None = None) -> Progress:
    """How far it is: read from what its driver keeps anyway, when somebody asks."""
    now, move = asyncio.get_running_loop().time(), task.entry.move
    return Progress(
        move_id=move.move_id,
        phase=move.phase if phase is None else phase,
        sent_bytes=task.context.sent_bytes,
        total_bytes=task.context.total_bytes,
        step=task.timed_step,
        step_ms=task.step_ms(now),
        elapsed_ms=max(0.0, now - task.began_s) * 1e3,
        wait_max_ms=move.wait_s * 1e3,
    )
