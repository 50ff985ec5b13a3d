"""Finding: what one check found, in words, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How a check ended."""

    HELD = "held"
    #: Allowed, and worth a look.
    WARNED = "warned"
    FAILED = "failed"
    #: Not asked, because something that it needs failed.
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """One line of the report. `remedy` is empty where there is nothing to do."""

    check: str
    outcome: Outcome
    evidence: str
    remedy: str = ""


@dataclass(frozen=True)
class Found:
    """What a check says of itself; the suite knows its name."""

    outcome: Outcome
    evidence: str
    remedy: str = ""


def held(evidence: str) -> Found:
    """It is as it must be."""
    return Found(Outcome.HELD, evidence)


def warned(evidence: str, remedy: str) -> Found:
    """Allowed, and worth a look."""
    return Found(Outcome.WARNED, evidence, remedy)


def failed(evidence: str, remedy: str) -> Found:
    """A move of such a world would not be what it promises."""
    return Found(Outcome.FAILED, evidence, remedy)


def listed(names: list[str], at_most: int = 6) -> str:
    """A handful of names, and how many more there are."""
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more
