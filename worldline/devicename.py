"""Device name: `cpu` or `cuda:N`, as one process calls a device it can reach.

The index counts what that process sees: under another `CUDA_VISIBLE_DEVICES` it is another GPU.
Between processes a GPU goes by its UUID.
"""

from __future__ import annotations

import re

from worldline.errors import InvalidInput

CPU = "cpu"
_CUDA = re.compile(r"cuda(?::(0|[1-9][0-9]{0,2}))?")


def device_name(text: str, field: str) -> str:
    """The name in full: `cuda` alone means `cuda:0`.

    Raises:
        InvalidInput: it is no device's name.
    """
    found = _CUDA.fullmatch(text)
    if text == CPU:
        return CPU
    if found is None:
        raise InvalidInput(f"{field} must be cpu or cuda:N, got {text!r}", field=field)
    return f"cuda:{found[1] or 0}"


def cuda_index(name: str) -> int | None:
    """The index in a full name; None for `cpu`."""
    return None if name == CPU else int(name.removeprefix("cuda:"))
