"""Row: one line of the table, and the bar that its value is held to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Sense(Enum):
    """Which side of a bar is good."""

    AT_LEAST = ">="
    AT_MOST = "<="
    BELOW = "<"


@dataclass(frozen=True, slots=True)
class Bar:
    """A limit in the row's own unit."""

    sense: Sense
    limit: float

    def met_by(self, value: float) -> bool:
        """Whether a value is on the good side."""
        match self.sense:
            case Sense.AT_LEAST:
                return value >= self.limit
            case Sense.AT_MOST:
                return value <= self.limit
            case Sense.BELOW:
                return value < self.limit

    def __str__(self) -> str:
        return f"{self.sense.value} {self.limit:g}"


def at_least(limit: float) -> Bar:
    """A bar that large values meet."""
    return Bar(Sense.AT_LEAST, limit)


def at_most(limit: float) -> Bar:
    """A bar that small values meet."""
    return Bar(Sense.AT_MOST, limit)


def below(limit: float) -> Bar:
    """A bar that only smaller values meet."""
    return Bar(Sense.BELOW, limit)


@dataclass(frozen=True, slots=True)
class RowSpec:
    """What a row is before it is measured.

    `verified` says of a mover whether the digests of both ends were compared before its clock
    stopped; None where that is no question.
    """

    name: str
    unit: str
    bar: Bar | None = None
    verified: bool | None = None

    def measured(self, value: float, repeats: int, detail: str = "") -> Row:
        """The row with its value, the median of `repeats`."""
        return Row(self, value, repeats, detail=detail)

    def skipped(self, reason: str) -> Row:
        """The row without a value: it cannot be measured here, and why."""
        return Row(self, None, 0, skipped=reason)

    def failed(self, reason: str) -> Row:
        """The row without a value: it could be measured here, and something of ours broke."""
        return Row(self, None, 0, detail=f"failed: {reason}", broken=True)


@dataclass(frozen=True, slots=True)
class Row:
    """A row as it came out."""

    spec: RowSpec
    value: float | None
    repeats: int
    skipped: str | None = None
    detail: str = ""
    broken: bool = False

    @property
    def ok(self) -> bool | None:
        """Whether the bar was met; None where there is no bar or no value to hold to it."""
        if self.broken:
            return False
        if self.spec.bar is None or self.value is None:
            return None
        return self.spec.bar.met_by(self.value)

    def to_json(self) -> dict[str, Any]:
        """As written to `latest.json`."""
        return {
            "name": self.spec.name,
            "value": self.value,
            "unit": self.spec.unit,
            "bar": None if self.spec.bar is None else str(self.spec.bar),
            "ok": self.ok,
            "repeats": self.repeats,
            "skipped": self.skipped,
            "verified": self.spec.verified,
            "detail": self.detail,
        }
