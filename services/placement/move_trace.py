"""What a move's trace says about it: on its root how it ended, on each step what came of it."""

from __future__ import annotations

from services.placement import events as ev
from services.placement import move_table
from services.placement.records import MoveEntry
from worldline.telemetry import ActiveSpan, note_verdict


def describe_end(entry: MoveEntry, root: ActiveSpan) -> None:
    """The outcome with its reason; of a reject all its numbers, of a failure what it says."""
    move = entry.move
    outcome, reason = move_table.outcome_of(entry)
    root.set(
        target_node_id=move.target.node_id,
        outcome=outcome,
        reason=reason,
        frozen_ms=entry.frozen_ms,
    )
    if outcome == "committed":
        return
    if move.verdict is not None and not move.verdict.admitted:
        note_verdict(root, move.verdict)
    elif move.failure is not None:
        root.event(outcome, reason=reason, message=move.failure.message)
    root.fail(f"{outcome}: {reason}")


def describe_step(event: ev.Event, active: ActiveSpan) -> None:
    """The outcome of one step."""
    if isinstance(event, ev.Admitted | ev.Refused):
        active.set(verdict=event.verdict.label)
        note_verdict(active, event.verdict)
    if isinstance(event, ev.Refused):
        active.fail(event.verdict.label)
    elif isinstance(event, ev.Failed | ev.VerifiedUnequal | ev.CommitLost):
        active.fail(event.failure.reason)
    elif isinstance(event, ev.Pushed):
        figures = event.figures
        active.set(
            bytes=figures.wire_bytes,
            blank_bytes=figures.blank_bytes,
            chunks=figures.chunks,
            rate_bytes_per_s=figures.rate_bytes_per_s,
        )
    elif isinstance(event, ev.Settled):
        active.set(outcome=event.outcome.value)
