"""Report: findings in a service's log, once at its start."""

from __future__ import annotations

import structlog

from worldline.doctor.facts import ProcessFacts
from worldline.doctor.finding import Severity
from worldline.doctor.process import check_process

_log = structlog.get_logger(__name__)


def report_surroundings(facts: ProcessFacts) -> None:
    """A line for what works, but slowly or not for everybody, with what mends it."""
    for finding in check_process(facts):
        if finding.severity is Severity.WARNING:
            _log.warning(
                "doctor.finding",
                code=finding.code,
                what=finding.what,
                why=finding.why,
                remedy=finding.remedy,
            )
