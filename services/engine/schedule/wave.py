"""Wave: cohorts that go block by block together (C2b).

No member of a wave begins block n + 1 before every member has finished block n. The barrier is
computed anew from whoever is a member now: one that closes, fails or moves away holds up nobody.
A member that is frozen for a move is one still, and the others wait for the move to end.
"""

from __future__ import annotations

from collections.abc import Iterable


def wave_floors(members: Iterable[tuple[str, int]]) -> dict[str, int]:
    """By wave id, the block that the slowest member is at; no member may begin a later one.

    `members` are (wave id, index of the block it is at) of all sessions here, whether they have
    work or not; those without a wave are left out.
    """
    floors: dict[str, int] = {}
    for wave_id, block_index in members:
        if wave_id:
            floors[wave_id] = min(block_index, floors.get(wave_id, block_index))
    return floors
