"""Park: the words that placement, movers and clients share about suspended sessions."""

from __future__ import annotations

import re
from enum import IntEnum

from worldline.errors import InvalidInput

#: A parked copy's name is also the name of a directory.
_PARK_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", re.ASCII)


class ParkKind(IntEnum):
    """Where a parked copy rests; numbers as in park.proto."""

    MEMORY = 1
    FILE = 2


class SuspensionVerb(IntEnum):
    """Which way a suspension goes; numbers as in park.proto."""

    SUSPEND = 1
    RESUME = 2


class SuspensionPhase(IntEnum):
    """How far a suspend or a resume is; numbers as in park.proto."""

    BEGUN = 1
    RECORDED = 2
    DONE = 3
    UNDOING = 4
    ABORTED = 5

    @property
    def terminal(self) -> bool:
        """Nothing more will happen."""
        return self in (SuspensionPhase.DONE, SuspensionPhase.ABORTED)


def park_id(text: str, field: str = "park_id") -> str:
    """The name of a parked copy: 1 to 128 letters, digits, `-` and `_`.

    Raises:
        InvalidInput: it is none.
    """
    if _PARK_ID.fullmatch(text) is None:
        raise InvalidInput(
            f"{field} must be 1 to 128 letters, digits, '-' and '_', got {text[:140]!r}",
            field=field,
        )
    return text
