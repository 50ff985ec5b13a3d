"""Open desk: nobody decides. Every move goes at once, to the node with the fewest under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from bench.office import TicketOffice
from tests.fabric.desk import Answer
from worldline.state.layout import Layout
from worldline.ticket import MovePurpose, ticket_to_proto
from worldline.v1 import move_pb2
from worldline.verdict import Verdict


class OpenDesk:
    """As `Desk`, with tickets of an office."""

    def __init__(self, office: TicketOffice) -> None:
        self._office = office
        self._into: Counter[str] = Counter()
        self._targets: dict[str, str] = {}

    async def ask(
        self,
        move_id: str,
        layout: Layout,
        source: str,
        targets: Sequence[str],
        purpose: MovePurpose = MovePurpose.SESSION,
    ) -> Answer:
        """Yes."""
        assert purpose is MovePurpose.SESSION, "nobody here wants to know what a path costs"
        target = min(targets, key=lambda name: self._into[name])
        self._into[target] += 1
        self._targets[move_id] = target
        ticket = self._office.ticket(layout, move_id, source, target)
        return Answer(Verdict.admit("everybody is"), target, ticket_to_proto(ticket))

    async def end(
        self,
        move_id: str,
        stats: move_pb2.PushStats | None,
        *,
        frozen_ms: float = 0.0,
        committed: bool = False,
        reason: str = "",
    ) -> None:
        """One less."""
        del stats, frozen_ms, committed, reason
        self._into[self._targets.pop(move_id)] -= 1

    def log(self) -> list[dict[str, Any]]:
        """Nothing was decided."""
        return []
