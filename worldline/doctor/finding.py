"""Finding: one thing that a check has to say: what is, why it matters, what mends it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """How much it matters; more is worse."""

    #: Good to know, or a little faster otherwise.
    INFO = 0
    #: Works, but slowly, or not for everybody.
    WARNING = 1
    #: Something that was asked for cannot work.
    ERROR = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """`code` is stable and for machines. `subject` names a process, node or path.

    `field` is the setting, variable or device at fault, empty where none is; `remedy` a line to
    copy, or to put where such settings are.
    """

    severity: Severity
    code: str
    subject: str
    what: str
    why: str
    remedy: str
    field: str = ""


def worst(findings: Iterable[Finding]) -> Severity | None:
    """The worst severity; None where there is no finding."""
    return max((finding.severity for finding in findings), default=None)


def sorted_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The worst first, then by code and subject; each once."""
    unique = dict.fromkeys(findings)
    return tuple(sorted(unique, key=lambda one: (-one.severity, one.code, one.subject)))
