"""Process: every check of one process by itself. Pure."""

from __future__ import annotations

from worldline.doctor.bindcheck import check_binding
from worldline.doctor.devicecheck import check_devices
from worldline.doctor.facts import ProcessFacts
from worldline.doctor.finding import Finding, sorted_findings
from worldline.doctor.limitcheck import check_limits
from worldline.doctor.memorycheck import check_memory, check_shared_memory
from worldline.doctor.ucxcheck import check_ucx


def check_process(facts: ProcessFacts) -> tuple[Finding, ...]:
    """What is wrong with what it finds around itself, the worst first."""
    return sorted_findings(
        (
            *check_ucx(facts),
            *check_shared_memory(facts),
            *check_memory(facts),
            *check_limits(facts),
            *check_binding(facts),
            *check_devices(facts),
        )
    )
