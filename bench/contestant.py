"""Contestant: somebody who moves the payload from one place to another, again and again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping


class Skipped(Exception):
    """It cannot run here; the message says why and what would help."""


class Failed(Exception):
    """It runs here in principle, and did not this time; the message says how it ended."""


class Contestant(ABC):
    """What it starts is started by `prepare` and gone after `close`.

    `verified` says whether a run compares the digests of both ends before its clock stops.
    `runs_max` lets one that takes long sit out further rounds.
    """

    def __init__(self, name: str, *, verified: bool = False, runs_max: int | None = None) -> None:
        self.name = name
        self.verified = verified
        self.runs_max = runs_max
        #: What is worth knowing of the last run, for example its lanes; may be empty.
        self.note = ""
        #: Further figures of the last run, by name.
        self.figures: Mapping[str, float] = {}

    @abstractmethod
    def prepare(self) -> None:
        """Start, connect, and run once without being timed.

        Raises:
            Skipped: it is missing or does not work on this machine.
            Failed: it broke.
        """

    @abstractmethod
    def run(self) -> float:
        """Seconds for the whole payload, from the word to go until the target has it.

        Raises:
            Failed: it broke, or what landed was not the payload.
        """

    @abstractmethod
    def close(self) -> None:
        """End and free everything; idempotent, never raises."""
