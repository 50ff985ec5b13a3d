"""Topology: the canonical encoding of a layout's meaning, and its SHA-256.

Defined by hand, because protobuf does not promise one serialization per message. All integers are
unsigned 64-bit little endian, `text` is a length and UTF-8:

    "worldline.layout\\0"  version  extent
    count, then per tensor: path dtype rank shape... stride... offset size region
    count, then per region: offset size
    count, then per scalar: path
    root node: "T" index | "S" index | "[" count nodes | "(" count nodes
             | "{" count ("s" text | "i" two's complement) node ... | "<" name count text node ...

Scalar values and their types are left out: they change from block to block. The digest of the
whole covers them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from worldline.state.leaf import Region, ScalarLeaf, TensorLeaf
from worldline.state.node import (
    DictNode,
    ListNode,
    Node,
    RecordNode,
    ScalarNode,
    TensorNode,
    TupleNode,
)

MAGIC = b"worldline.layout\0"
_number = struct.Struct("<Q").pack


def topology_hash(
    *,
    version: int,
    extent_bytes: int,
    tensors: Sequence[TensorLeaf],
    regions: Sequence[Region],
    scalars: Sequence[ScalarLeaf],
    root: Node,
) -> bytes:
    """SHA-256 (32 bytes) over the canonical encoding above; inputs are validated before."""
    out = bytearray(MAGIC)
    out += _numbers(version, extent_bytes, len(tensors))
    for leaf in tensors:
        place = (leaf.offset_bytes, leaf.size_bytes, leaf.region)
        out += _text(leaf.path) + _text(leaf.dtype)
        out += _numbers(len(leaf.shape), *leaf.shape, *leaf.stride, *place)
    out += _numbers(len(regions))
    for region in regions:
        out += _numbers(region.offset_bytes, region.size_bytes)
    out += _numbers(len(scalars))
    for scalar in scalars:
        out += _text(scalar.path)
    _node(root, out)
    return hashlib.sha256(out).digest()


def scalars_encoding(scalars: Sequence[ScalarLeaf]) -> bytes:
    """Canonical encoding of the scalars: count, then path, kind, length and payload of each."""
    out = bytearray(_numbers(len(scalars)))
    for scalar in scalars:
        kind, payload = scalar.canonical()
        out += _text(scalar.path) + _numbers(kind, len(payload)) + payload
    return bytes(out)


def _numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def _text(value: str) -> bytes:
    encoded = value.encode("utf-8")
    return _number(len(encoded)) + encoded


def _node(node: Node, out: bytearray) -> None:
    match node:
        case TensorNode(index):
            out += b"T" + _number(index)
        case ScalarNode(index):
            out += b"S" + _number(index)
        case ListNode(items) | TupleNode(items):
            out += (b"[" if isinstance(node, ListNode) else b"(") + _number(len(items))
            for child in items:
                _node(child, out)
        case DictNode(entries):
            out += b"{" + _number(len(entries))
            for key, child in entries:
                out += b"i" + struct.pack("<q", key) if isinstance(key, int) else b"s" + _text(key)
                _node(child, out)
        case RecordNode(class_name, fields):
            out += b"<" + _text(class_name) + _number(len(fields))
            for name, child in fields:
                out += _text(name)
                _node(child, out)
