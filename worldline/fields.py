"""Field checks: what every message is parsed with at the edge.

Each check returns the value in its domain type or raises `InvalidInput` naming the field, so that
a domain value that exists is a domain value that holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import TypeVar

from worldline.errors import InvalidInput

#: Longest name that a peer may give a session, node, engine, move or ticket.
IDENTIFIER_CHARS_MAX = 128

#: Largest count of bytes that any field may state: what a signed 64-bit integer (SQLite) holds.
BYTES_MAX = 2**63 - 1

EnumT = TypeVar("EnumT", bound=IntEnum)


def finite(value: float, field: str) -> float:
    """`value` as a float that is neither NaN nor infinite.

    Raises:
        InvalidInput: it is not; or it is an integer too large for a float.
    """
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{field} must be a number, got a {type(value).__name__}", field=field)
    try:
        number = float(value)
    except OverflowError:
        raise InvalidInput(f"{field} is too large", field=field) from None
    if not math.isfinite(number):
        raise InvalidInput(f"{field} must be a finite number, got {value}", field=field)
    return number


def positive(
    value: float, field: str, *, at_least: float = 0.0, at_most: float = math.inf
) -> float:
    """A finite number above 0, and between `at_least` and `at_most`.

    Raises:
        InvalidInput: it is not.
    """
    if type(value) is float and 0.0 < value < math.inf and at_least <= value <= at_most:
        return value
    number = finite(value, field)
    if number <= 0:
        raise InvalidInput(f"{field} must be greater than 0, got {value}", field=field)
    if number < at_least:
        raise InvalidInput(f"{field} must be at least {at_least:g}, got {value}", field=field)
    if number > at_most:
        raise InvalidInput(f"{field} must be at most {at_most:g}, got {value}", field=field)
    return number


def non_negative(value: float, field: str, *, at_most: float = math.inf) -> float:
    """A finite number of 0 or more and not above `at_most`.

    Raises:
        InvalidInput: it is not.
    """
    if type(value) is float and 0.0 <= value < math.inf and value <= at_most:
        return value
    number = finite(value, field)
    if number < 0:
        raise InvalidInput(f"{field} must not be negative, got {value}", field=field)
    if number > at_most:
        raise InvalidInput(f"{field} must be at most {at_most:g}, got {value}", field=field)
    return number


def whole(value: int, field: str, *, at_least: int = 0, at_most: int = BYTES_MAX) -> int:
    """An integer between `at_least` and `at_most`, both included.

    Raises:
        InvalidInput: it is not.
    """
    if type(value) is int and at_least <= value <= at_most:
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(
            f"{field} must be a whole number, got a {type(value).__name__}", field=field
        )
    if not at_least <= value <= at_most:
        raise InvalidInput(
            f"{field} must be between {at_least} and {at_most}, got {value}", field=field
        )
    return value


def identifier(text: str, field: str) -> str:
    """A name of 1 to 128 printable characters without spaces.

    Raises:
        InvalidInput: it is no text, empty, too long, or would garble a log line or a terminal.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"{field} must be a name, got a {type(text).__name__}", field=field)
    if not text:
        raise InvalidInput(f"{field} must not be empty", field=field)
    if len(text) > IDENTIFIER_CHARS_MAX:
        raise InvalidInput(
            f"{field} must have at most {IDENTIFIER_CHARS_MAX} characters, got {len(text)}",
            field=field,
        )
    if not text.isprintable() or " " in text:
        raise InvalidInput(
            f"{field} must be printable and without spaces, got {text!r}", field=field
        )
    return text


# --- many at once --------------------------------------------------------------------------
# Looked at together as long as nothing is wrong; then one by one, for the word on what it is.


def identifiers(texts: Sequence[str], field: str) -> None:
    """Each as `identifier`.

    Raises:
        InvalidInput: one is not.
    """
    together = "".join(texts)
    longest = max(map(len, texts), default=0)
    fine = all(texts) and together.isprintable() and " " not in together
    if not fine or longest > IDENTIFIER_CHARS_MAX:
        for text in texts:
            identifier(text, field)


def wholes(values: Sequence[int], field: str, *, at_most: int = BYTES_MAX) -> None:
    """Each as `whole`.

    Raises:
        InvalidInput: one is not.
    """
    if {*map(type, values)} != {int} or min(values) < 0 or max(values) > at_most:
        for value in values:
            whole(value, field, at_most=at_most)


def non_negatives(values: Sequence[float], field: str, *, at_most: float = math.inf) -> None:
    """Each as `non_negative`.

    Raises:
        InvalidInput: one is not.
    """
    fine = {*map(type, values)} == {float} and all(map(math.isfinite, values))
    if not fine or min(values) < 0 or max(values) > at_most:
        for value in values:
            non_negative(value, field, at_most=at_most)


def enum_member(kind: type[EnumT], number: int, field: str) -> EnumT:
    """The member of `kind` with that protobuf number; 0 is "unspecified" and never a member.

    Raises:
        InvalidInput: no such member; the message lists those there are.
    """
    if type(number) is kind:
        return number
    try:
        return kind(number)
    except ValueError:
        known = ", ".join(member.name for member in kind)
        got = "unspecified" if number == 0 else f"unknown number {number}"
        raise InvalidInput(f"{field} must be one of {known}; got {got}", field=field) from None
