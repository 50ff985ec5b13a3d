"""Desk: what a test asks of the real admission, in placement's words, with a log of every word.

The log is what the pure core is asked afterwards: questions and ends, each with the time half-way
between call and answer, on the driver's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.fabric.pushes import now_s
from tests.fabric.services import CALL_S, Services
from tests.fabric.worlds import EPOCH
from worldline.contract import Contract, contract_to_proto
from worldline.rpc.channel import call
from worldline.state.layout import Layout
from worldline.ticket import MovePurpose, parse_claims
from worldline.v1 import admission_pb2, move_pb2
from worldline.verdict import Verdict, verdict_from_proto

#: Moves and probes are all of one client: who floods whom is another matter.
CLIENT = "fabric"
#: More than a queue of moves that are still in time can hold.
SLOTS_FREE = 6
ASKED, ENDED = "asked", "ended"


@dataclass(frozen=True, slots=True)
class Answer:
    """What admission said, the receiver that it was about, and the ticket where it admitted."""

    verdict: Verdict
    target: str
    ticket: move_pb2.SignedTicket | None


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log. What a question has no part in stays at its default."""

    what: str
    at_s: float
    move_id: str
    purpose: int = 0
    source: str = ""
    targets: tuple[str, ...] = ()
    size_bytes: int = 0
    verdict: str = ""
    target: str = ""
    #: Of an end: what was measured, 0 where nothing was.
    transfer_ms: float = 0.0
    frozen_ms: float = 0.0
    committed: bool = False


class Desk:
    """Asks for moves under one contract, and tells how they ended."""

    def __init__(self, services: Services, contract: Contract) -> None:
        self._services = services
        self._contract = contract
        self._tickets: dict[str, tuple[str, int]] = {}
        self._log: list[Entry] = []

    async def know_nothing(self) -> None:
        """Tell admission, which has just started, that nothing is under way."""
        request = admission_pb2.RelearnRequest()
        await call(self._services.admission.Relearn, request, timeout_s=CALL_S)

    async def ask(
        self,
        move_id: str,
        layout: Layout,
        source: str,
        targets: Sequence[str],
        purpose: MovePurpose = MovePurpose.SESSION,
    ) -> Answer:
        """May this session, named as its move, go, and where to?"""
        request = admission_pb2.AdmitMoveRequest(
            move_id=move_id,
            session_id=move_id,
            epoch=EPOCH,
            contract=contract_to_proto(self._contract),
            source_node_id=source,
            targets=[
                admission_pb2.MoveTarget(node_id=target, slots_free=SLOTS_FREE)
                for target in targets
            ],
            extent_bytes=layout.extent_bytes,
            topology_hash=layout.topology_hash,
            purpose=move_pb2.MovePurpose.Name(purpose),
            client_id=CLIENT,
        )
        asked_s = now_s()
        answer = await call(self._services.admission.AdmitMove, request, timeout_s=CALL_S)
        verdict = verdict_from_proto(answer.verdict)
        self._log.append(
            Entry(
                ASKED,
                (asked_s + now_s()) / 2,
                move_id,
                int(purpose),
                source,
                tuple(targets),
                layout.extent_bytes,
                verdict.label,
                answer.target_node_id,
            )
        )
        if not verdict.admitted:
            return Answer(verdict, answer.target_node_id, None)
        ticket_id = parse_claims(answer.ticket.claims).ticket_id
        self._tickets[move_id] = ticket_id, layout.extent_bytes
        return Answer(verdict, answer.target_node_id, answer.ticket)

    async def end(
        self,
        move_id: str,
        stats: move_pb2.PushStats | None,
        *,
        frozen_ms: float = 0.0,
        committed: bool = False,
        reason: str = "",
    ) -> None:
        """Tell admission how a move ended; its hold ends with that."""
        ticket_id, size_bytes = self._tickets.pop(move_id)
        report = admission_pb2.FinishMoveRequest(
            ticket_id=ticket_id,
            move_id=move_id,
            push_stats=stats,
            frozen_ms=frozen_ms,
            committed=committed,
            reason=reason,
        )
        told_s = now_s()
        await call(self._services.admission.FinishMove, report, timeout_s=CALL_S)
        # As admission reads them.
        transfer_ms = 0.0 if stats is None else stats.wire_ms + stats.verify_tail_ms
        self._log.append(
            Entry(
                ENDED,
                (told_s + now_s()) / 2,
                move_id,
                size_bytes=size_bytes,
                transfer_ms=transfer_ms,
                frozen_ms=frozen_ms,
                committed=committed,
            )
        )

    def log(self) -> list[dict[str, Any]]:
        """Everything so far, in order of time, for machines."""
        return [asdict(entry) for entry in sorted(self._log, key=lambda entry: entry.at_s)]
