"""Open moves: those that have not ended, by id, with the tasks that drive them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from services.placement.move import Move
from services.placement.phases import MovePhase

if TYPE_CHECKING:  # the tasks' steps read this list
    from services.placement.move_task import MoveTask


class OpenMoves:
    """The moves under way. A move is in here from before its first step until after its last."""

    def __init__(self) -> None:
        self._tasks: dict[str, MoveTask] = {}
        self._on_change: list[Callable[[], None]] = []

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call this when a move begins, goes to another phase, or ends."""
        self._on_change.append(changed)

    def changed(self) -> None:
        """One of them has."""
        for changed in self._on_change:
            changed()

    def add(self, task: MoveTask) -> None:
        """It begins."""
        self._tasks[task.entry.move.move_id] = task
        self.changed()

    def remove(self, move_id: str) -> None:
        """It has ended; repeating it changes nothing."""
        self._tasks.pop(move_id, None)
        self.changed()

    def get(self, move_id: str) -> MoveTask | None:
        """The task of that move; None where it is not under way."""
        return self._tasks.get(move_id)

    def tasks(self) -> tuple[MoveTask, ...]:
        """All, by id."""
        return tuple(task for _, task in sorted(self._tasks.items()))

    def moves(self) -> tuple[Move, ...]:
        """As far as each has got, by id."""
        return tuple(task.entry.move for task in self.tasks())

    def coming_to(self, engine_id: str) -> frozenset[str]:
        """Sessions for which a move under way has room at that engine: one that is undone or has
        ended has none.
        """
        return frozenset(
            task.entry.move.session_id
            for task in self._tasks.values()
            if task.context.room_at == engine_id
            and not task.entry.move.phase.terminal
            and task.entry.move.phase is not MovePhase.ROLLING_BACK
        )

    def __len__(self) -> int:
        return len(self._tasks)
