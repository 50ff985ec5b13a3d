"""Suite: rows that are measured together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.rounds import Say
from bench.row import Row, RowSpec

SEED = 20260711
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Options:
    """How to measure. `quick`: a small payload, which tries the bench out and compares nothing."""

    repeats: int = REPEATS
    quick: bool = False
    seed: int = SEED

    @property
    def layout_name(self) -> str:
        """Whose state is the payload."""
        return "small" if self.quick else "mg2"


class Suite(Protocol):
    """Knows its rows before anything is measured."""

    @property
    def specs(self) -> Sequence[RowSpec]:
        """Every row that it can give, in the order of the table."""

    def measure(self, wanted: Collection[str], options: Options, say: Say) -> list[Row]:
        """The rows whose names are wanted, in that order."""
