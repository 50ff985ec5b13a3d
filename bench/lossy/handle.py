"""Handle: one way to send less than the state, applied in place; and what it has to go by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from services.engine.model.config import WorldConfig
from services.engine.world import StateTree


@dataclass(frozen=True)
class Scene:
    """What a handle sees: the state that it changes, and another session's at the same block."""

    config: WorldConfig
    state: StateTree
    donor: StateTree


@dataclass(frozen=True)
class Handle:
    """A way to send less.

    `apply` changes the scene's state into what the destination would rebuild, and returns the bytes
    that the wire was spared.
    """

    family: str
    name: str
    apply: Callable[[Scene], int]

    def __str__(self) -> str:
        return f"{self.family}: {self.name}"
