"""Path: the stable name of a leaf, built from the way that leads to it.

    kv_cache[3].k      dict "kv_cache" -> list item 3 -> dict "k" or dataclass field k
    table["a b"]       dict key that is no ASCII identifier (JSON string)
    slots{7}           dict key that is an int
    $                  a tree that is one bare leaf

Two different ways never give one path: the forms are told apart by their first character and JSON
quoting is injective.
"""

from __future__ import annotations

import json

#: The root's own path, for a tree that is one bare leaf.
ROOT = "$"


def of_item(parent: str, index: int) -> str:
    """Path of item `index` of a list or tuple."""
    return f"{parent}[{index}]"


def of_field(parent: str, name: str) -> str:
    """Path of a dataclass field."""
    return f"{parent}.{name}" if parent else name


def of_key(parent: str, key: str | int) -> str:
    """Path of the value under a dict key."""
    if isinstance(key, int):
        return f"{parent}{{{key}}}"
    if key.isascii() and key.isidentifier():
        return of_field(parent, key)
    return f"{parent}[{json.dumps(key)}]"


def shown(path: str) -> str:
    """The path, or the root's name where it is still empty."""
    return path or ROOT
