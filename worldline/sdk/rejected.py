"""Rejected: the answer was no, where the caller asked for something that needs a yes."""

from __future__ import annotations

from typing import ClassVar

import grpc

from worldline.errors import WorldlineError
from worldline.verdict import Verdict


class Rejected(WorldlineError):
    """Admission or placement rejected; `verdict` has the reason and the arithmetic."""

    status: ClassVar[grpc.StatusCode] = grpc.StatusCode.FAILED_PRECONDITION
    default_reason = "REJECTED"

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(
            verdict.explanation,
            reason=verdict.label,
            retry_after_ms=verdict.retry_after_ms or None,
        )
        self.verdict = verdict
