"""Tree: a state tree into a slot and back, bit for bit.

What a tree may hold is said in `harvest`, the syntax of paths in `path`.

Memory shared by leaves. Leaves whose byte spans overlap (same storage or not: addresses decide)
form one region, the union of their bounding spans. It is moved once, and after `materialize` the
leaves are views of one memory again: what is written through one is read through the other. Two
leaves at one address with different lengths are two leaves in one region.

A leaf alone in its region is packed densely, its dimensions in the order that they had in memory
and expanded dimensions still expanded (stride 0): a 10 MB view of a 4 GB storage moves 10 MB,
sliced or strided.

Limits. (1) Overlap is judged by bounding spans, so interleaved views such as kv[..., :64] and
kv[..., 64:] share a region even though no byte is in both, and two thin views far apart in one
storage move everything between them if, and only if, their spans overlap. Bytes of a region that
no leaf covers are zero after `pack`. (2) A view that overlaps itself (a sliding window) keeps its
strides. (3) Views whose spans do not overlap become unrelated memory, even of one storage.
(4) Strides of dimensions of size 1 mean nothing and may change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from worldline.errors import InvalidInput
from worldline.state import path as paths
from worldline.state.arrange import arrange, groups_of
from worldline.state.harvest import FoundTensor, Harvest, TensorSpec, harvest, refused
from worldline.state.layout import Layout
from worldline.state.leaf import TensorLeaf
from worldline.state.node import (
    DictNode,
    ListNode,
    Node,
    RecordNode,
    ScalarNode,
    TensorNode,
    TupleNode,
)
from worldline.state.record import rebuild, registry
from worldline.state.stride import overlaps_itself
from worldline.state.view import check_buffer, copy_bits, leaf_views

__all__ = [
    "TensorSpec",
    "check_same",
    "clear_padding",
    "layout_of",
    "materialize",
    "pack",
    "plan",
    "same_device",
]


def plan(tree: object, *, device: torch.device | str | None = None) -> Layout:
    """A fresh, compact layout for a tree of tensors, specs and scalars; no memory is taken.

    All tensors must be on `device`, or, where it is None, on the first tensor's.

    Raises:
        InvalidInput: a leaf that cannot be moved or lies on another device; `leaf` names it.
    """
    found = harvest(tree)
    _check_device(found, None if device is None else torch.device(device))
    return Layout.build(tensors=arrange(found.tensors), scalars=found.scalars, root=found.root)


def layout_of(tree: object, buffer: torch.Tensor) -> Layout:
    """The layout of a tree whose tensors already are views into the 1-D uint8 `buffer`.

    Offsets and strides are those of the tensors; nothing is packed.

    Raises:
        InvalidInput: a leaf is a spec, outside the buffer or on another device; or as `plan`.
    """
    check_buffer(buffer, 0, ())
    found = harvest(tree)
    _check_device(found, buffer.device)
    leaves = [_placed_in(item, buffer) for item in found.tensors]
    check_buffer(buffer, 0, leaves)
    return Layout.build(tensors=leaves, scalars=found.scalars, root=found.root)


def pack(tree: object, layout: Layout, buffer: torch.Tensor) -> Layout:
    """Copy a tree's tensors to their places in a slot; returns the layout with its scalars.

    Bytes of the extent that no leaf covers become zero, so that equal states are equal slots. A
    tree that already lies in the buffer at the layout's places is left as it is.

    Raises:
        InvalidInput: the tree is not the one that was laid out (`leaf` says where), lies on another
            device, overlaps the buffer elsewhere, or the buffer does not fit.
    """
    check_buffer(buffer, layout.extent_bytes, layout.tensors)
    found = harvest(tree)
    _check_device(found, buffer.device)
    elsewhere = _elsewhere(found, layout, buffer)
    if elsewhere or found.root != layout.root:
        check_same(found, layout)
        _check_apart(found.tensors, elsewhere, buffer)
        _clear(layout, buffer)
        for item, view in zip(found.tensors, leaf_views(layout, buffer), strict=True):
            copy_bits(_tensor(item), view)
    return layout.with_scalars({scalar.path: scalar.value for scalar in found.scalars})


def materialize(layout: Layout, buffer: torch.Tensor, classes: Iterable[type] = ()) -> object:
    """The tree as views into a slot; no byte is copied.

    `classes` are the dataclasses that the tree may hold. Instances are made by setting fields,
    without running `__init__`.

    Raises:
        InvalidInput: the buffer is too short, of another dtype or misaligned; a dataclass is not
            among `classes` or has other fields here.
    """
    check_buffer(buffer, layout.extent_bytes, layout.tensors)
    known = registry(classes)
    return _grow(layout.root, "", layout, leaf_views(layout, buffer), known)


def clear_padding(layout: Layout, buffer: torch.Tensor) -> None:
    """Zero the bytes between regions, so that a re-used slot keeps nothing of its last owner.

    Bytes inside regions are not touched. `pack` does this by itself; a tree that is materialized
    in a slot which is not zero needs it once.
    """
    check_buffer(buffer, layout.extent_bytes, ())
    end = 0
    for region in layout.regions:
        buffer[end : region.offset_bytes].zero_()
        end = region.end_bytes


def _check_device(found: Harvest, device: torch.device | None) -> None:
    for item in found.tensors:
        if isinstance(item.value, TensorSpec):
            continue
        here = item.value.device
        device = here if device is None else device
        if not same_device(here, device):
            raise refused(item.path, f"lies on {here}, the state on {device}")


def same_device(here: torch.device, wanted: torch.device) -> bool:
    """Whether a tensor's device is the wanted one; without an index any of the type will do."""
    if here.type == "cpu":
        return wanted.type == "cpu"
    return here.type == wanted.type and wanted.index in (None, here.index)


def _placed_in(item: FoundTensor, buffer: torch.Tensor) -> TensorLeaf:
    _tensor(item)
    offset = 0 if item.address is None else item.address - buffer.data_ptr()
    if offset < 0 or offset + item.span_bytes > buffer.numel():
        raise refused(item.path, "is not a view into the slot")
    return TensorLeaf(
        path=item.path,
        dtype=item.dtype,
        shape=item.shape,
        stride=item.stride,
        offset_bytes=offset,
        size_bytes=item.size_bytes,
        region=0,
    )


def check_same(found: Harvest, layout: Layout) -> None:
    """The tree is the one that was laid out: structure, paths, dtypes, shapes, shared memory.

    Raises:
        InvalidInput: it is not; `leaf` says where.
    """
    for item, leaf in zip(found.tensors, layout.tensors, strict=False):
        if (item.path, item.dtype, item.shape) != (leaf.path, leaf.dtype, leaf.shape):
            raise refused(
                item.path,
                f"{item.dtype} {list(item.shape)}, but the layout has {leaf.path}, {leaf.dtype} "
                f"{list(leaf.shape)}",
            )
        here, there = _moving(item.shape, item.stride), _moving(leaf.shape, leaf.stride)
        expanded_alike = [step == 0 for step in here] == [step == 0 for step in there]
        window = overlaps_itself(item.shape, here) or overlaps_itself(leaf.shape, there)
        if not expanded_alike or (window and here != there):
            raise refused(item.path, f"stride {item.stride}, but the layout has {leaf.stride}")
    if found.root != layout.root:
        found_paths = {item.path for item in found.tensors} | {leaf.path for leaf in found.scalars}
        laid_out_paths = {leaf.path for leaf in layout.tensors} | set(layout.scalar_values())
        raise InvalidInput(
            "the tree is not the one that was laid out: other leaves, containers or order",
            field="state",
            leaf=min(found_paths ^ laid_out_paths, default=None),
        )
    _check_sharing(found.tensors, layout)


def _check_sharing(found: Sequence[FoundTensor], layout: Layout) -> None:
    members_of: dict[int, list[int]] = {}
    for index, leaf in enumerate(layout.tensors):
        members_of.setdefault(leaf.region, []).append(index)
    laid_out = {index: tuple(members) for members in members_of.values() for index in members}
    for members in groups_of(found):
        first = members[0]
        if laid_out[first] != members:
            raise refused(found[first].path, "shares memory otherwise than in the layout")
        for index in members if len(members) > 1 else ():
            item, leaf = found[index], layout.tensors[index]
            shift = (item.address or 0) - (found[first].address or 0)
            wanted = leaf.offset_bytes - layout.tensors[first].offset_bytes
            strides = _moving(item.shape, item.stride), _moving(leaf.shape, leaf.stride)
            if shift != wanted or strides[0] != strides[1]:
                raise refused(item.path, "lies elsewhere in its shared memory than in the layout")


def _moving(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """The strides that mean something: those of dimensions with more than one index."""
    return tuple(step if size > 1 else 0 for size, step in zip(shape, stride, strict=True))


def _elsewhere(found: Harvest, layout: Layout, buffer: torch.Tensor) -> list[FoundTensor]:
    """The tensors that are not the layout's views into the buffer; none for a live state."""
    start = buffer.data_ptr()
    return [
        item
        for item, leaf in zip(found.tensors, layout.tensors, strict=False)
        if (item.dtype, item.shape) != (leaf.dtype, leaf.shape)
        or (item.address is None and item.size_bytes)
        or (item.address is not None and item.address != start + leaf.offset_bytes)
        or (
            item.stride != leaf.stride
            and _moving(item.shape, item.stride) != _moving(leaf.shape, leaf.stride)
        )
    ]


def _check_apart(
    found: Sequence[FoundTensor], elsewhere: Sequence[FoundTensor], buffer: torch.Tensor
) -> None:
    """A tree that is copied into the buffer has bytes, and none there: they would be overwritten.

    Asked before anything is written, so that a refused tree leaves the slot as it was.
    """
    start = buffer.data_ptr()
    end = start + buffer.numel()
    for item in found:
        _tensor(item)
        if item.address is None or item.address >= end or item.address + item.span_bytes <= start:
            continue
        raise refused(
            elsewhere[0].path if elsewhere else item.path,
            "lies in this buffer, or beside leaves that do; copy it first",
        )


def _clear(layout: Layout, buffer: torch.Tensor) -> None:
    """Zero what no leaf will be written over: padding, and regions that may have holes."""
    clear_padding(layout, buffer)
    for leaf in layout.tensors:
        region = layout.regions[leaf.region]
        if leaf.size_bytes < region.size_bytes:
            buffer[region.offset_bytes : region.end_bytes].zero_()


def _tensor(item: FoundTensor) -> torch.Tensor:
    if isinstance(item.value, TensorSpec):
        raise refused(item.path, "is a TensorSpec and has no bytes")
    return item.value


def _grow(
    node: Node,
    path: str,
    layout: Layout,
    views: Sequence[torch.Tensor],
    known: Mapping[str, type],
) -> object:
    def below(child: Node, where: str) -> object:
        return _grow(child, where, layout, views, known)

    match node:
        case TensorNode(index):
            return views[index]
        case ScalarNode(index):
            return layout.scalars[index].value
        case ListNode(items):
            return [below(item, paths.of_item(path, at)) for at, item in enumerate(items)]
        case TupleNode(items):
            return tuple(below(item, paths.of_item(path, at)) for at, item in enumerate(items))
        case DictNode(entries):
            return {key: below(child, paths.of_key(path, key)) for key, child in entries}
        case RecordNode(class_name, fields):
            values = {name: below(child, paths.of_field(path, name)) for name, child in fields}
            return rebuild(class_name, values, known, paths.shown(path))
