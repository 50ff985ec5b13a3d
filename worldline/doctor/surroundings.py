"""Surroundings: what a service looks at before it builds anything."""

from __future__ import annotations

import os
from pathlib import Path

from worldline.errors import Unavailable


def check_writable(directory: Path, field: str, *, reason: str) -> None:
    """Whether files can be made there.

    Raises:
        Unavailable: they cannot; `field` names the setting.
    """
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        raise Unavailable(
            f"{field} {directory} is not a directory this process can write to",
            reason=reason,
            field=field,
        )
