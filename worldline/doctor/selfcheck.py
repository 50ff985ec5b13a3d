"""Self-check: presets that an engine does not generate twice with the same bits. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from worldline.doctor.facts import ProcessFacts
from worldline.doctor.finding import Finding, Severity


def check_self_checks(facts: ProcessFacts) -> Iterator[Finding]:
    """What an engine found out about itself, a finding a preset."""
    for preset, differs in sorted(facts.self_checks.items()):
        if differs:
            yield Finding(
                Severity.WARNING,
                "NOT_DETERMINISTIC",
                facts.subject,
                f"{preset} is not generated twice with the same bits: {differs}",
                "it takes no T0 session of it; T1 sessions play",
                "worldline nodes --json    # says where; keep noise, counters and scratch "
                f"in the state tree, then restart {facts.subject}",
                preset,
            )
