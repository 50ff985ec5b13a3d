"""Fabric: a named path with its measured rate."""

from __future__ import annotations

from dataclasses import dataclass

from worldline.cli import quantities
from worldline.errors import InvalidInput

_NAME_CHARS_MAX = 64


@dataclass(frozen=True, slots=True)
class Fabric:
    """A row of the grid."""

    name: str
    rate_bytes_per_s: float


def parse_fabric(text: str, option: str) -> Fabric:
    """`NAME=RATE`, for example `lab=100Gb/s`.

    Raises:
        InvalidInput: it is not; `field` is `option`.
    """
    name, equals, rate = text.rpartition("=")
    if not equals or not name.strip():
        raise InvalidInput(
            f"{option} takes NAME=RATE, for example lab=100Gb/s; got {text!r}", field=option
        )
    return Fabric(display_name(name, option), quantities.rate(rate, option))


def display_name(text: str, option: str) -> str:
    """A name that a table and a figure can show on one line.

    Raises:
        InvalidInput: it is empty, longer than 64 characters or not printable.
    """
    name = text.strip()
    if not name or len(name) > _NAME_CHARS_MAX or not name.isprintable():
        raise InvalidInput(
            f"{option} takes a name of 1 to {_NAME_CHARS_MAX} printable characters; got {text!r}",
            field=option,
        )
    return name
