"""Blame: an exception in one line, with the place in the author's own code."""

from __future__ import annotations

import traceback
from pathlib import Path

import worldline

#: Where the lines are that nobody but us can mend.
_OURS = (Path(__file__).parents[2], Path(worldline.__file__).parent)


def blamed(error: BaseException) -> str:
    """What was raised, and the deepest line that is not of the engine or below."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [
        frame
        for frame in frames
        if not any(Path(frame.filename).is_relative_to(ours) for ours in _OURS)
        and "site-packages" not in frame.filename
    ]
    where = f" at {theirs[-1].filename}:{theirs[-1].lineno}" if theirs else ""
    return f"{type(error).__name__}: {error}{where}"
