"""Node: the shape of a state tree, containers down to leaves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from worldline.state.path import of_field, of_item, of_key


@dataclass(frozen=True, slots=True)
class TensorNode:
    """Stands for `Layout.tensors[index]`."""

    index: int


@dataclass(frozen=True, slots=True)
class ScalarNode:
    """Stands for `Layout.scalars[index]`."""

    index: int


@dataclass(frozen=True, slots=True)
class ListNode:
    """A list."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class TupleNode:
    """A plain tuple."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class DictNode:
    """A plain dict, entries in insertion order."""

    entries: tuple[tuple[str | int, Node], ...]


@dataclass(frozen=True, slots=True)
class RecordNode:
    """A dataclass instance, fields in declaration order."""

    #: Resolved among the classes that the receiver was given; never imported.
    class_name: str
    fields: tuple[tuple[str, Node], ...]


Node: TypeAlias = TensorNode | ScalarNode | ListNode | TupleNode | DictNode | RecordNode


def children(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    """Path and node of each child, in order; none for leaves."""
    match node:
        case ListNode(items) | TupleNode(items):
            for index, child in enumerate(items):
                yield of_item(path, index), child
        case DictNode(entries):
            for key, child in entries:
                yield of_key(path, key), child
        case RecordNode(_, fields):
            for name, child in fields:
                yield of_field(path, name), child
        case TensorNode() | ScalarNode():
            return
