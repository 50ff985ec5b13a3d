"""Telemetry: spans, metrics and logs of one process.

Everything works with nothing started: spans and metrics then cost a few attribute look-ups and
trace ids that arrive over gRPC are still passed on.
"""

from __future__ import annotations

from worldline.telemetry.logs import configure_logs
from worldline.telemetry.metrics import Instruments, instruments
from worldline.telemetry.process import Telemetry, start
from worldline.telemetry.spans import (
    ActiveSpan,
    current_span,
    current_trace_id,
    current_traceparent,
    lasting_span,
    no_span,
    span,
    traceparent_in,
)
from worldline.telemetry.threads import carried
from worldline.telemetry.verdicts import note_verdict

__all__ = [
    "ActiveSpan",
    "Instruments",
    "Telemetry",
    "carried",
    "configure_logs",
    "current_span",
    "current_trace_id",
    "current_traceparent",
    "instruments",
    "lasting_span",
    "no_span",
    "note_verdict",
    "span",
    "start",
    "traceparent_in",
]
