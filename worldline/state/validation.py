"""Validation: everything that must hold in a layout, checked before any memory is taken.

Sizes are unbounded Python ints here, so arithmetic cannot wrap; what torch could not index (beyond
2**63 - 1) is refused. Bounds on depth, rank and leaf count keep a hostile manifest cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from worldline.errors import InvalidInput, VersionSkew
from worldline.state import path as paths
from worldline.state.dtypes import itemsize_bytes
from worldline.state.leaf import Region, ScalarLeaf, TensorLeaf, span_elements
from worldline.state.node import DictNode, Node, RecordNode, ScalarNode, TensorNode, children
from worldline.state.regions import derive_regions

#: Version of the layout's encoding; a receiver refuses any other.
LAYOUT_VERSION = 1

#: Containers from the root to a leaf. Each costs up to three protobuf levels, and protobuf stops
#: parsing at one hundred: 3 * 24 + the message around it stays below.
DEPTH_MAX = 24
RANK_MAX = 64
LEAVES_MAX = 1 << 17
#: torch's sizes, strides and offsets are int64.
BYTES_MAX = (1 << 63) - 1
_INT_KEYS = range(-(1 << 63), 1 << 63)


def check_layout(
    *,
    version: int,
    regions: Sequence[Region],
    tensors: Sequence[TensorLeaf],
    scalars: Sequence[ScalarLeaf],
    root: Node,
    extent_bytes: int,
) -> None:
    """Raise InvalidInput (naming the leaf) or VersionSkew unless all parts hold together."""
    check_version(version)
    spans = check_leaves(tensors)
    for scalar in scalars:
        scalar.canonical()
    _check_paths(tensors, scalars)
    _check_regions(regions, extent_bytes)
    _check_membership(regions, tensors, spans)
    check_tree(root, tensors, scalars)


def check_version(version: int) -> None:
    """Raise VersionSkew unless this side speaks the version."""
    if version != LAYOUT_VERSION:
        raise VersionSkew(
            f"layout version {version} is unknown; this side speaks {LAYOUT_VERSION}",
            field="layout.version",
        )


def check_leaves(tensors: Sequence[TensorLeaf]) -> list[tuple[int, int]]:
    """Each tensor leaf on its own: dtype, shape, stride, size, alignment, no overflow.

    Returns the leaves' bounding spans, (start, end) in bytes.
    """
    if len(tensors) > LEAVES_MAX:
        raise InvalidInput(f"{len(tensors)} tensors; at most {LEAVES_MAX}", field="layout.tensors")
    return [_check_leaf(leaf) for leaf in tensors]


def _check_leaf(leaf: TensorLeaf) -> tuple[int, int]:
    itemsize = itemsize_bytes(leaf.dtype, leaf=leaf.path)
    if len(leaf.shape) > RANK_MAX or len(leaf.shape) != len(leaf.stride):
        raise _refused(
            leaf.path,
            "stride",
            f"{len(leaf.shape)} sizes and {len(leaf.stride)} strides; they must be equally many "
            f"and at most {RANK_MAX}",
        )
    _check_numbers(leaf.path, "shape", leaf.shape)
    _check_numbers(leaf.path, "stride", leaf.stride)
    _check_numbers(leaf.path, "offset_bytes", (leaf.offset_bytes,))
    _check_numbers(leaf.path, "size_bytes", (leaf.size_bytes,))
    # Zero dimensions count as one in the bound: torch multiplies the others all the same.
    bound = itemsize * prod([size or 1 for size in leaf.shape])
    end_bytes = leaf.offset_bytes + span_elements(leaf.shape, leaf.stride) * itemsize
    if bound > BYTES_MAX or end_bytes > BYTES_MAX:
        raise _refused(leaf.path, "shape", "shape, stride and offset overflow 63 bits")
    size_bytes = 0 if 0 in leaf.shape else bound
    if leaf.size_bytes != size_bytes:
        raise _refused(
            leaf.path,
            "size_bytes",
            f"{leaf.size_bytes} bytes, but {leaf.dtype} {list(leaf.shape)} holds {size_bytes}",
        )
    if leaf.offset_bytes % itemsize:
        raise _refused(
            leaf.path,
            "offset_bytes",
            f"offset {leaf.offset_bytes} is not aligned to {leaf.dtype} ({itemsize} bytes)",
        )
    if size_bytes == 0 and leaf.offset_bytes != 0:
        raise _refused(leaf.path, "offset_bytes", "an empty leaf lies at offset 0")
    return leaf.offset_bytes, end_bytes


def _check_paths(tensors: Sequence[TensorLeaf], scalars: Sequence[ScalarLeaf]) -> None:
    if len(scalars) > LEAVES_MAX:
        raise InvalidInput(f"{len(scalars)} scalars; at most {LEAVES_MAX}", field="layout.scalars")
    seen: set[str] = set()
    for path in [leaf.path for leaf in tensors] + [scalar.path for scalar in scalars]:
        if path in seen:
            raise _refused(path, "path", f"path {path!r} is repeated")
        seen.add(path)


def _check_regions(regions: Sequence[Region], extent_bytes: int) -> None:
    end = 0
    for index, region in enumerate(regions):
        field = f"layout.regions[{index}]"
        numbers = (region.offset_bytes, region.size_bytes, region.end_bytes)
        if any(type(number) is not int or not 0 <= number <= BYTES_MAX for number in numbers):
            raise InvalidInput(f"region {region} overflows 63 bits", field=field)
        if region.offset_bytes < end:
            raise InvalidInput(
                f"region at {region.offset_bytes} overlaps or precedes the one that ends at {end}",
                field=field,
            )
        end = region.end_bytes
    if extent_bytes != end:
        raise InvalidInput(
            f"extent of {extent_bytes} bytes, but the last region ends at {end}",
            field="layout.extent_bytes",
        )


def _check_membership(
    regions: Sequence[Region], tensors: Sequence[TensorLeaf], spans: Sequence[tuple[int, int]]
) -> None:
    """Each region is exactly what its leaves' spans add up to, and no span crosses regions."""
    for leaf, (start, end) in zip(tensors, spans, strict=True):
        if type(leaf.region) is not int or not 0 <= leaf.region < len(regions):
            raise _refused(leaf.path, "region", f"region {leaf.region} of {len(regions)}")
        region = regions[leaf.region]
        if start < region.offset_bytes or end > region.end_bytes:
            raise _refused(
                leaf.path,
                "region",
                f"bytes {start}..{end} lie outside the leaf's region "
                f"{region.offset_bytes}..{region.end_bytes}",
            )
    expected, member_of = derive_regions(spans)
    for leaf, index in zip(tensors, member_of, strict=True):
        if leaf.region != index or regions[leaf.region] != expected[index]:
            raise _refused(
                leaf.path,
                "region",
                f"{regions[leaf.region]} at index {leaf.region} is not the union of its leaves' "
                f"spans, {expected[index]} at index {index}",
            )
    if len(regions) != len(expected):
        raise InvalidInput(
            f"{len(regions)} regions, but the leaves make {len(expected)}", field="layout.regions"
        )


def check_tree(root: Node, tensors: Sequence[TensorLeaf], scalars: Sequence[ScalarLeaf]) -> None:
    """The tree refers to each leaf exactly once, under the path that leads to it."""
    missing = {("tensor", index): leaf.path for index, leaf in enumerate(tensors)}
    missing.update({("scalar", index): leaf.path for index, leaf in enumerate(scalars)})
    pending: list[tuple[str, Node, int]] = [("", root, 0)]
    while pending:
        path, node, depth = pending.pop()
        if isinstance(node, TensorNode | ScalarNode):
            kind = "tensor" if isinstance(node, TensorNode) else "scalar"
            found = missing.pop((kind, node.index), None)
            if found is None:
                raise _refused(
                    paths.shown(path), "root", f"{kind} {node.index} is unknown or used twice"
                )
            if found != paths.shown(path):
                raise _refused(found, "path", f"the leaf lies at {paths.shown(path)!r} in the tree")
            continue
        if depth >= DEPTH_MAX:
            raise _refused(paths.shown(path), "root", f"nested deeper than {DEPTH_MAX}")
        _check_names(node, path)
        below = [(where, child, depth + 1) for where, child in children(node, path)]
        pending.extend(reversed(below))  # the first child is looked at first
    if missing:
        unused = sorted(missing.values())[0]
        raise _refused(unused, "root", "the leaf is not in the tree")


def _check_names(node: Node, path: str) -> None:
    """Keys and fields: right type, encodable, none twice."""
    if isinstance(node, DictNode):
        keys: list[str | int] = [key for key, _ in node.entries]
    elif isinstance(node, RecordNode):
        keys = [name for name, _ in node.fields]
        _check_text(node.class_name, path)
        if not all(isinstance(name, str) and name.isidentifier() for name in keys):
            raise _refused(paths.shown(path), "root", "a field's name is no identifier")
    else:
        return
    if len(set(keys)) != len(keys):
        raise _refused(paths.shown(path), "root", "a key or field is repeated")
    for key in keys:
        if type(key) is int:
            if key not in _INT_KEYS:
                raise _refused(paths.shown(path), "root", f"int key {key} overflows 64 bits")
        else:
            _check_text(key, path)


def _check_text(value: object, path: str) -> None:
    if type(value) is not str:
        raise _refused(
            paths.shown(path), "root", f"key {value!r} is neither a plain string nor a plain int"
        )
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise _refused(paths.shown(path), "root", f"{value!r} is not UTF-8") from None


def _check_numbers(path: str, name: str, numbers: Sequence[int]) -> None:
    for number in numbers:
        if type(number) is not int or not 0 <= number <= BYTES_MAX:
            raise _refused(path, name, f"{number} is not an int in 0..2**63-1")


def _refused(leaf: str, name: str, message: str) -> InvalidInput:
    return InvalidInput(f"leaf {leaf}: {message}", field=f"layout.{name}", leaf=leaf)
