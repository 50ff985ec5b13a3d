"""Facts of a move as JSON: the durable form of `Move`, parsed back into the same frozen value.

What was issued and is awaited is left out on purpose: it belongs to the process that awaits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from services.placement.move import Move
from services.placement.phases import Goal, MovePhase
from services.placement.records import MoveEntry
from services.placement.values import Failure, Party, PushFigures, SlotName, Ticket
from worldline.errors import InvariantBroken, WorldlineError
from worldline.verdict import RejectReason, Verdict


def facts_to_json(entry: MoveEntry) -> str:
    """One JSON object; digests and generations are whole numbers of any size."""
    move = entry.move
    return json.dumps(
        {
            "source": _party(move.source),
            "target": _party(move.target),
            "goal": move.goal.name,
            "tier_dropped": move.tier_dropped,
            "unequal": _failure(move.unequal),
            "verdict": _verdict(move.verdict),
            "failure": _failure(move.failure),
            "lost": move.lost,
            "ticket": _ticket(move.ticket),
            "reservation_id": move.reservation_id,
            "source_slot": slot_to_list(move.source_slot),
            "target_slot": slot_to_list(move.target_slot),
            "block_index": move.block_index,
            "source_digest": move.source_digest,
            "target_digest": move.target_digest,
            "figures": _figures(move.figures),
            "story": list(move.story),
            "timings": [list(pair) for pair in entry.timings],
            "frozen_ms": entry.frozen_ms,
        },
        allow_nan=False,
        sort_keys=True,
    )


def entry_from_row(row: Mapping[str, Any]) -> MoveEntry:
    """The record of one row of `moves`.

    Raises:
        InvariantBroken: the row does not parse: the file was changed by something else.
    """
    try:
        return _entry(row, json.loads(row["facts"]))
    except (KeyError, TypeError, ValueError, WorldlineError) as error:
        raise InvariantBroken(
            f"the directory's record of move {row['move_id']} does not parse: {error!r}"
        ) from error


def _entry(row: Mapping[str, Any], facts: dict[str, Any]) -> MoveEntry:
    move = Move(
        move_id=row["move_id"],
        session_id=row["session_id"],
        source=Party(*facts["source"]),
        target=Party(*facts["target"]),
        source_epoch=row["source_epoch"],
        goal=Goal[facts["goal"]],
        phase=MovePhase(row["phase"]),
        tier_dropped=facts["tier_dropped"],
        unequal=_parse_failure(facts["unequal"]),
        verdict=_parse_verdict(facts["verdict"]),
        failure=_parse_failure(facts["failure"]),
        lost=facts["lost"],
        ticket=_parse_ticket(facts["ticket"]),
        reservation_id=facts["reservation_id"],
        source_slot=slot_from_list(facts["source_slot"]),
        target_slot=slot_from_list(facts["target_slot"]),
        block_index=facts["block_index"],
        source_digest=facts["source_digest"],
        target_digest=facts["target_digest"],
        figures=_parse_figures(facts["figures"]),
        story=tuple(facts["story"]),
    )
    return MoveEntry(
        move=move,
        timings=tuple((name, duration_ms) for name, duration_ms in facts["timings"]),
        frozen_ms=facts["frozen_ms"],
        trace_id=row["trace_id"],
        idempotency_key=row["idempotency_key"] or "",
        changed_unix_s=row["changed_unix_s"],
    )


def _party(party: Party) -> list[str]:
    return [party.engine_id, party.engine_incarnation, party.node_id, party.node_incarnation]


def slot_to_list(slot: SlotName | None) -> list[str | int] | None:
    """A slot's name for JSON."""
    return None if slot is None else [slot.node_id, slot.slot_index, slot.generation]


def slot_from_list(parts: list[Any] | None) -> SlotName | None:
    """The slot's name back.

    Raises:
        InvalidInput: it is not one.
    """
    return None if parts is None else SlotName(*parts)


def _failure(failure: Failure | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    return {name: getattr(failure, name) for name in Failure.__slots__}


def _parse_failure(parts: dict[str, Any] | None) -> Failure | None:
    return None if parts is None else Failure(**parts)


def _ticket(ticket: Ticket | None) -> dict[str, Any] | None:
    if ticket is None:
        return None
    return {name: getattr(ticket, name) for name in Ticket.__slots__}


def _parse_ticket(parts: dict[str, Any] | None) -> Ticket | None:
    return None if parts is None else Ticket(**parts)


def _figures(figures: PushFigures | None) -> dict[str, Any] | None:
    if figures is None:
        return None
    parts = {name: getattr(figures, name) for name in PushFigures.__slots__}
    return parts | {"lanes": list(figures.lanes)}


def _parse_figures(parts: dict[str, Any] | None) -> PushFigures | None:
    return None if parts is None else PushFigures(**parts | {"lanes": tuple(parts["lanes"])})


def _verdict(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {
        "reason": None if verdict.reason is None else verdict.reason.name,
        "explanation": verdict.explanation,
        "numbers": dict(verdict.numbers),
        "retry_after_ms": verdict.retry_after_ms,
    }


def _parse_verdict(parts: dict[str, Any] | None) -> Verdict | None:
    if parts is None:
        return None
    reason = None if parts["reason"] is None else RejectReason[parts["reason"]]
    return Verdict(
        admitted=reason is None,
        reason=reason,
        explanation=parts["explanation"],
        numbers=parts["numbers"],
        retry_after_ms=parts["retry_after_ms"],
    )
