"""Node codec: the shape of the tree to protobuf and back."""

from __future__ import annotations

from worldline.errors import InvalidInput
from worldline.state.node import (
    DictNode,
    ListNode,
    Node,
    RecordNode,
    ScalarNode,
    TensorNode,
    TupleNode,
)
from worldline.state.path import of_field, of_item, of_key, shown
from worldline.state.validation import DEPTH_MAX
from worldline.v1 import manifest_pb2


def node_to_proto(node: Node) -> manifest_pb2.TreeNode:
    """The wire form of a valid layout's tree (its depth is bounded)."""
    message = manifest_pb2.TreeNode()
    match node:
        case TensorNode(index):
            message.tensor = index
        case ScalarNode(index):
            message.scalar = index
        case ListNode(items) | TupleNode(items):
            sequence = message.list if isinstance(node, ListNode) else message.tuple
            sequence.SetInParent()
            sequence.items.extend(node_to_proto(item) for item in items)
        case DictNode(entries):
            message.dict.SetInParent()
            for key, child in entries:
                entry = message.dict.entries.add(value=node_to_proto(child))
                if isinstance(key, int):
                    entry.int_key = key
                else:
                    entry.string_key = key
        case RecordNode(class_name, fields):
            message.dataclass.class_name = class_name
            message.dataclass.SetInParent()
            for name, child in fields:
                message.dataclass.fields.add(name=name, value=node_to_proto(child))
    return message


def node_from_proto(message: manifest_pb2.TreeNode, path: str = "", depth: int = 0) -> Node:
    """Parse; indices, paths and names are checked when the layout is built.

    Raises:
        InvalidInput: a node or key of no known kind, or nested deeper than 24; `leaf` is the path.
    """
    kind = message.WhichOneof("kind")
    if kind == "tensor":
        return TensorNode(message.tensor)
    if kind == "scalar":
        return ScalarNode(message.scalar)
    if depth >= DEPTH_MAX:
        raise _refused(path, f"nested deeper than {DEPTH_MAX}")
    below = depth + 1
    if kind == "list":
        return ListNode(_items(message.list, path, below))
    if kind == "tuple":
        return TupleNode(_items(message.tuple, path, below))
    if kind == "dict":
        return DictNode(tuple(_entry(entry, path, below) for entry in message.dict.entries))
    if kind == "dataclass":
        return RecordNode(
            message.dataclass.class_name,
            tuple(
                (field.name, node_from_proto(field.value, of_field(path, field.name), below))
                for field in message.dataclass.fields
            ),
        )
    raise _refused(path, "the node is of no known kind")


def _items(message: manifest_pb2.Sequence, path: str, depth: int) -> tuple[Node, ...]:
    return tuple(
        node_from_proto(item, of_item(path, index), depth)
        for index, item in enumerate(message.items)
    )


def _entry(message: manifest_pb2.Mapping.Entry, path: str, depth: int) -> tuple[str | int, Node]:
    kind = message.WhichOneof("key")
    if kind is None:
        raise _refused(path, "a dict entry has no key of a known kind")
    key = message.int_key if kind == "int_key" else message.string_key
    return key, node_from_proto(message.value, of_key(path, key), depth)


def _refused(path: str, message: str) -> InvalidInput:
    return InvalidInput(f"{shown(path)}: {message}", field="layout.root", leaf=shown(path))
