"""Plug-in name: `module:attribute`, as settings and commands name a model. Imports no torch."""

from __future__ import annotations

import re

from worldline.errors import InvalidInput

#: The setting that names plug-ins.
FIELD = "models"

_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_NAME = re.compile(f"{_DOTTED}:{_DOTTED}")


def plugin_names(text: str) -> tuple[str, ...]:
    """The names in a setting, separated by commas; each once, in order.

    Raises:
        InvalidInput: one is not `module:attribute`.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise refused(
                "MODEL_NAME_INVALID",
                f"{name!r} names no model: write module:attribute, as in my_pkg.worlds:MyWorld",
            )
    return tuple(dict.fromkeys(names))


def refused(reason: str, message: str) -> InvalidInput:
    """The error for a plug-in that cannot be served."""
    return InvalidInput(message, reason=reason, field=FIELD)
