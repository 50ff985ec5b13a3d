"""Verdicts in traces: the answer as an event of the span that asked, with all its arithmetic."""

from __future__ import annotations

from worldline.telemetry.spans import ActiveSpan, Attribute
from worldline.verdict import Verdict


def note_verdict(active: ActiveSpan, verdict: Verdict) -> None:
    """An event `admitted` or `rejected`: reason, explanation, when to ask again, every number."""
    facts: dict[str, Attribute] = {
        **verdict.numbers,
        "reason": verdict.label,
        "explanation": verdict.explanation,
        "retry_after_ms": verdict.retry_after_ms,
    }
    active.event("admitted" if verdict.admitted else "rejected", **facts)
