"""Script: what the player of a checked world does. No block's action is like its neighbours'."""

from __future__ import annotations

from services.engine.world import Action


def scripted(block_index: int) -> Action:
    """The action for a block."""
    return Action(
        block_index,
        keyboard=(block_index * 5 + 1) % 16,
        mouse_dx=((block_index * 3) % 7 - 3) / 3,
        mouse_dy=((block_index * 5) % 5 - 2) / 4,
    )
