"""Suspension record: a suspension and what was measured about it, and its durable form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from services.placement.move_facts import slot_from_list, slot_to_list
from services.placement.suspension import ParkFigures, Suspension
from services.placement.values import Failure, Party
from services.placement.wire import failure_to_proto
from worldline.errors import InvariantBroken, WorldlineError
from worldline.park import ParkKind, SuspensionPhase, SuspensionVerb
from worldline.v1 import move_pb2, park_pb2


@dataclass(frozen=True, slots=True)
class SuspensionEntry:
    """The record."""

    suspension: Suspension
    timings: tuple[tuple[str, float], ...] = ()
    trace_id: str = ""
    idempotency_key: str = ""

    def with_suspension(self, suspension: Suspension) -> SuspensionEntry:
        """The same record of one that has gone on."""
        return replace(self, suspension=suspension)


def facts_to_json(entry: SuspensionEntry) -> str:
    """One JSON object. What was issued and is awaited belongs to the process that awaits; what the
    state was frozen under goes on record with the parked copy.
    """
    one = entry.suspension
    return json.dumps(
        {
            "party": [getattr(one.party, name) for name in Party.__slots__],
            "kind": int(one.kind),
            "park_id": one.park_id,
            "failure": None
            if one.failure is None
            else {name: getattr(one.failure, name) for name in Failure.__slots__},
            "lost": one.lost,
            "tier_dropped": one.tier_dropped,
            "slot": slot_to_list(one.slot),
            "block_index": one.block_index,
            "digest": one.digest,
            "figures": {name: getattr(one.figures, name) for name in ParkFigures.__slots__},
            "story": list(one.story),
            "timings": [list(pair) for pair in entry.timings],
        },
        allow_nan=False,
        sort_keys=True,
    )


def entry_from_row(row: Mapping[str, Any]) -> SuspensionEntry:
    """The record of one row of `suspensions`.

    Raises:
        InvariantBroken: the row does not parse: the file was changed by something else.
    """
    try:
        return _entry(row, json.loads(row["facts"]))
    except (KeyError, TypeError, ValueError, WorldlineError) as error:
        raise InvariantBroken(
            f"the directory's record of suspension {row['suspension_id']} does not parse: {error!r}"
        ) from error


def _entry(row: Mapping[str, Any], facts: dict[str, Any]) -> SuspensionEntry:
    suspension = Suspension(
        suspension_id=row["suspension_id"],
        session_id=row["session_id"],
        verb=SuspensionVerb(row["verb"]),
        kind=ParkKind(facts["kind"]),
        park_id=facts["park_id"],
        party=Party(*facts["party"]),
        epoch=row["epoch"],
        phase=SuspensionPhase(row["phase"]),
        failure=None if facts["failure"] is None else Failure(**facts["failure"]),
        lost=facts["lost"],
        slot=slot_from_list(facts["slot"]),
        block_index=facts["block_index"],
        digest=facts["digest"],
        figures=ParkFigures(**facts["figures"]),
        # A record of an earlier version has none: it never dropped one.
        tier_dropped=facts.get("tier_dropped", False),
        story=tuple(facts["story"]),
    )
    return SuspensionEntry(
        suspension=suspension,
        timings=tuple((name, duration_ms) for name, duration_ms in facts["timings"]),
        trace_id=row["trace_id"],
        idempotency_key=row["idempotency_key"] or "",
    )


def suspension_to_proto(entry: SuspensionEntry) -> park_pb2.SuspensionRecord:
    """The record as clients see it."""
    one = entry.suspension
    return park_pb2.SuspensionRecord(
        suspension_id=one.suspension_id,
        session_id=one.session_id,
        verb=park_pb2.SuspensionVerb.Name(one.verb),
        phase=park_pb2.SuspensionPhase.Name(one.phase),
        kind=park_pb2.ParkKind.Name(one.kind),
        epoch=one.epoch,
        failure=failure_to_proto(one.failure),
        timings=[
            move_pb2.PhaseTiming(name=name, duration_ms=duration_ms)
            for name, duration_ms in entry.timings
        ],
        stats=park_pb2.ParkStats(
            copied_bytes=one.figures.copied_bytes,
            copy_ms=one.figures.copy_ms,
            verify_ms=one.figures.verify_ms,
            direct_io=one.figures.direct_io,
        ),
        digest=one.digest,
        trace_id=entry.trace_id,
        tier_dropped=one.tier_dropped,
    )
