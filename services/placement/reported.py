"""Reported: what movers and engines said of themselves with their last renewals.

For people who look: nothing is decided by it, and it may be a third of a lease old.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from services.placement.block_counts import BlockCountBook
from services.placement.records import SessionRecord
from worldline.v1 import placement_pb2

#: Slots by device and role (`SlotRole`).
SlotCounts = Counter[tuple[str, int]]


class Reported:
    """The last word of each, by name; that of one who has fallen silent stays until it returns."""

    def __init__(self) -> None:
        self._slots: dict[str, SlotCounts] = {}
        self._blocks: dict[str, dict[tuple[str, int], int]] = {}
        self.block_counts = BlockCountBook()

    def note_slots(
        self, node_id: str, slots: Iterable[placement_pb2.RenewNodeRequest.SlotUse]
    ) -> None:
        """All slots of a node that are not FREE."""
        self._slots[node_id] = Counter((one.device, int(one.role)) for one in slots)

    def note_blocks(
        self, engine_id: str, running: Sequence[placement_pb2.RenewEngineRequest.RunningWorld]
    ) -> None:
        """All worlds that run at an engine."""
        self.block_counts.note(engine_id, running)
        self._blocks[engine_id] = {(one.session_id, one.epoch): one.block_index for one in running}

    def slots(self, node_id: str, device: str, role: int) -> int:
        """How many of a device's slots have that role."""
        return self._slots.get(node_id, SlotCounts())[device, role]

    def block_index(self, session: SessionRecord) -> int | None:
        """Of the next block; None where the owner has not said so in the session's epoch."""
        of_owner = self._blocks.get(session.owner, {})
        return of_owner.get((session.session_id, session.epoch))
