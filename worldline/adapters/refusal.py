"""Refusal: the errors of all adapters. `field` is the path of what is at fault.

Reasons: `CACHE_CLASS_UNKNOWN` for a class or a cache that the adapter does not know,
`CACHE_SHAPE_UNKNOWN` for a known one with another attribute, key, type or size, `CACHE_MISMATCH`
for a state that the receiving side is not configured for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worldline.errors import InvalidInput


def unknown_class(where: str, message: str) -> InvalidInput:
    """The error for a class or a cache that the adapter does not describe."""
    return InvalidInput(f"{where}: {message}", reason="CACHE_CLASS_UNKNOWN", field=where)


def unknown_shape(where: str, message: str) -> InvalidInput:
    """The error for a known one in another shape than its form."""
    return InvalidInput(f"{where}: {message}", reason="CACHE_SHAPE_UNKNOWN", field=where)


def mismatch(where: str, message: str) -> InvalidInput:
    """The error for a state that does not fit the receiving side."""
    return InvalidInput(f"{where}: {message}", reason="CACHE_MISMATCH", field=where)


def check_names(
    found: Mapping[str, Any], expected: frozenset[str], where: str, owner: str
) -> Mapping[str, Any]:
    """The attributes or entries, if there are exactly the expected ones."""
    for missing in sorted(expected - found.keys()):
        raise unknown_shape(f"{where}.{missing}", f"{owner} has no {missing}")
    for extra in sorted(found.keys() - expected, key=str):
        raise unknown_shape(f"{where}.{extra}", f"{owner} holds {extra}, which is not known here")
    return found


def check_type(value: object, wanted: type, where: str, owner: str) -> None:
    """Refuse a value whose type is not exactly the wanted one."""
    if type(value) is not wanted:
        raise unknown_shape(where, f"{owner} has {type(value).__name__}, not {wanted.__name__}")
