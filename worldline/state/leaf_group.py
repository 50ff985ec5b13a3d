"""Leaf group: leaves whose paths differ in indices only, `kv_cache[*].k`.

The layers of a model are alike; a table of groups fits a screen where one of leaves has hundreds of
lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from worldline.state.layout import Layout

# Indices of lists and integer keys; a quoted key may look like one and stays.
_INDEX = re.compile(r'("(?:[^"\\]|\\.)*")|\[\d+\]|\{-?\d+\}')


@dataclass(frozen=True, slots=True)
class LeafGroup:
    """A pattern, and the leaves that it stands for as indices into the layout's tensors."""

    pattern: str
    leaves: tuple[int, ...]


def pattern_of(path: str) -> str:
    """The path with a star for every index."""
    return _INDEX.sub(_starred, path)


def groups_by_pattern(layout: Layout) -> tuple[LeafGroup, ...]:
    """Groups of the tensors that have bytes, in the order of their first leaves."""
    members: dict[str, list[int]] = {}
    for index, leaf in enumerate(layout.tensors):
        if leaf.size_bytes:
            members.setdefault(pattern_of(leaf.path), []).append(index)
    return tuple(LeafGroup(pattern, tuple(leaves)) for pattern, leaves in members.items())


def each_leaf(layout: Layout) -> tuple[LeafGroup, ...]:
    """A group of its own for every tensor that has bytes, under its path."""
    return tuple(
        LeafGroup(leaf.path, (index,))
        for index, leaf in enumerate(layout.tensors)
        if leaf.size_bytes
    )


def _starred(match: re.Match[str]) -> str:
    if match[1] is not None:
        return match[0]
    return "[*]" if match[0].startswith("[") else "{*}"
