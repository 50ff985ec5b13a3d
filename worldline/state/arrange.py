"""Arrange: a place in a fresh slot for every tensor of a harvest.

Regions are placed by falling alignment, then in tree order, each aligned to its size rounded up to
a power of two, but at least to its element size and at most to 256 bytes (what CUDA's allocator
gives). States of big caches and small counters need no padding that way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from worldline.state.dtypes import itemsize_bytes
from worldline.state.harvest import FoundTensor, refused
from worldline.state.leaf import TensorLeaf
from worldline.state.regions import derive_regions
from worldline.state.stride import compact_stride

ALIGNMENT_BYTES_MAX = 256


@dataclass(frozen=True, slots=True)
class _Group:
    """Leaves that are placed together, with offsets from the start of their region."""

    #: Index in tree order, and the leaf at its offset within the region.
    members: tuple[tuple[int, TensorLeaf], ...]
    size_bytes: int
    alignment_bytes: int
    #: Where the region must start past a multiple of the alignment.
    phase_bytes: int


def arrange(found: Sequence[FoundTensor]) -> list[TensorLeaf]:
    """A placed leaf per tensor, in the same order; `region` is left for `Layout.build`.

    Raises:
        InvalidInput: overlapping leaves that no common start can align.
    """
    placed: dict[int, TensorLeaf] = {}
    groups = [_group(found, members) for members in groups_of(found)]
    cursor = 0
    for group in sorted(groups, key=lambda item: (-item.alignment_bytes, item.members[0][0])):
        past_phase = max(cursor - group.phase_bytes, 0)
        start = _round_up(past_phase, group.alignment_bytes) + group.phase_bytes
        if group.size_bytes == 0:
            start = 0  # an empty leaf's one right place, see `validation`
        for index, leaf in group.members:
            placed[index] = replace(leaf, offset_bytes=start + leaf.offset_bytes)
        cursor = max(cursor, start + group.size_bytes)
    return [placed[index] for index in range(len(found))]


def groups_of(found: Sequence[FoundTensor]) -> list[tuple[int, ...]]:
    """Indices of leaves that share memory, each group in tree order.

    Addresses, not storages, decide: two storages may wrap the same memory.
    """
    spans = [
        (0, 0) if item.address is None else (item.address, item.address + item.span_bytes)
        for item in found
    ]
    _, member_of = derive_regions(spans)
    by_region: dict[int, list[int]] = {}
    for index, region in enumerate(member_of):
        by_region.setdefault(region, []).append(index)
    return sorted(tuple(members) for members in by_region.values())


def _group(found: Sequence[FoundTensor], members: tuple[int, ...]) -> _Group:
    if len(members) == 1:
        item = found[members[0]]
        leaf = _leaf(item, 0, compact_stride(item.shape, item.stride))
        itemsize = itemsize_bytes(item.dtype)
        alignment = _alignment(leaf.span_bytes, itemsize)
        return _Group(((members[0], leaf),), leaf.span_bytes, alignment, 0)
    start = min(found[index].address or 0 for index in members)
    leaves = tuple(
        (index, _leaf(found[index], (found[index].address or 0) - start, found[index].stride))
        for index in members
    )
    size_bytes = max(leaf.end_bytes for _, leaf in leaves)
    widest = max((leaf for _, leaf in leaves), key=lambda leaf: itemsize_bytes(leaf.dtype))
    itemsize = itemsize_bytes(widest.dtype)
    phase_bytes = -widest.offset_bytes % itemsize
    for _, leaf in leaves:
        if (phase_bytes + leaf.offset_bytes) % itemsize_bytes(leaf.dtype):
            raise refused(
                leaf.path, f"shares memory with {widest.path} at an offset that aligns only one"
            )
    return _Group(leaves, size_bytes, _alignment(size_bytes, itemsize), phase_bytes)


def _leaf(item: FoundTensor, offset_bytes: int, stride: tuple[int, ...]) -> TensorLeaf:
    return TensorLeaf(
        path=item.path,
        dtype=item.dtype,
        shape=item.shape,
        stride=stride,
        offset_bytes=offset_bytes,
        size_bytes=item.size_bytes,
        region=0,
    )


def _alignment(size_bytes: int, itemsize: int) -> int:
    power = 1 << max(size_bytes - 1, 0).bit_length()
    return min(max(power, itemsize), ALIGNMENT_BYTES_MAX)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
