"""Difference: where two digests of one layout part ways. Pure; no bytes are read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worldline.errors import InvalidInput
from worldline.state.gf2 import Uint64s
from worldline.state.layout import Layout
from worldline.state.manifest import CRC64NVME, Digests
from worldline.state.segments import Segments, segments_of

_UINT64 = range(1 << 64)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where the actual digests are not the expected ones."""

    #: First differing leaf by offset; None where no leaf covers the bytes, or only the meaning
    #: (topology, scalars) differs.
    leaf: str | None
    #: First differing granule; None where only the meaning differs.
    granule: int | None
    message: str


def compare(layout: Layout, expected: Digests, actual: Digests) -> Difference | None:
    """None where equal, granule by granule, leaf by leaf and as a whole; else the first difference.

    A leaf's digest covers its bounding span, so where leaves share a region the named leaf is the
    first of those that cover the difference.

    Raises:
        InvalidInput: either side is absent, truncated, of another algorithm or granule size. A
            digest that cannot be compared is never taken as equal.
    """
    check_digests(layout, expected, "expected")
    check_digests(layout, actual, "actual")
    if expected.granule_bytes != actual.granule_bytes:
        raise InvalidInput(
            f"granules of {expected.granule_bytes} and {actual.granule_bytes} bytes cannot be "
            "compared",
            field="digests.granule_bytes",
        )
    if expected == actual:
        return None
    granule = _first_difference(expected.granules, actual.granules)
    leaf = _differing_leaf(layout, expected, actual, granule)
    return Difference(leaf, granule, _message(leaf, granule))


def compare_segments(
    layout: Layout, granule_bytes: int, expected: Uint64s, actual: Uint64s
) -> Difference | None:
    """None where the CRCs of all segments are equal; else the first difference. Microseconds.

    Equal segments mean equal bytes and therefore equal digests of every granule, leaf and extent,
    so nothing is composed. Topology and scalars are not in here: compare those as well.

    Raises:
        InvalidInput: either side is not one uint64 per segment, or the granule has no valid size.
    """
    segments = segments_of(layout, granule_bytes)
    segments.check(expected, "expected")
    segments.check(actual, "actual")
    differs = expected != actual
    if not differs.any():
        return None
    granule = int(segments.bounds[np.argmax(differs)]) // granule_bytes
    run = segments.run(granule, 1)
    leaf = _covering_leaf(layout, segments, run.start, differs[run.start : run.stop])
    return Difference(leaf, granule, _message(leaf, granule))


def check_digests(layout: Layout, digests: Digests | None, name: str = "digests") -> Digests:
    """The digests, if they are complete and of the one algorithm.

    Raises:
        InvalidInput: absent, truncated, of another algorithm, or not 64-bit values.
    """
    if digests is None:
        raise InvalidInput(f"{name}: absent; nothing was verified", field=name)
    if digests.algorithm != CRC64NVME:
        raise InvalidInput(
            f"{name}: algorithm {digests.algorithm!r} instead of {CRC64NVME!r}",
            field=f"{name}.algorithm",
        )
    if type(digests.granule_bytes) is not int or digests.granule_bytes < 1:
        raise InvalidInput(
            f"{name}: granules of {digests.granule_bytes} bytes", field=f"{name}.granule_bytes"
        )
    granule_count = -(-layout.extent_bytes // digests.granule_bytes)
    counts = (
        ("granules", len(digests.granules), granule_count),
        ("leaves", len(digests.leaves), len(layout.tensors)),
    )
    for part, count, wanted in counts:
        if count != wanted:
            raise InvalidInput(
                f"{name}: {count} {part} digests, the layout has {wanted}", field=f"{name}.{part}"
            )
    for value in (*digests.granules, *digests.leaves, digests.whole):
        if value not in _UINT64:
            raise InvalidInput(f"{name}: {value} is no 64-bit digest", field=name)
    return digests


def _first_difference(expected: tuple[int, ...], actual: tuple[int, ...]) -> int | None:
    pairs = zip(expected, actual, strict=True)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), None)


def _differing_leaf(
    layout: Layout, expected: Digests, actual: Digests, granule: int | None
) -> str | None:
    """First differing leaf by offset that reaches into the granule, if one is given."""
    found = [
        leaf
        for leaf, one, other in zip(layout.tensors, expected.leaves, actual.leaves, strict=True)
        if one != other
    ]
    if granule is not None:
        start = granule * expected.granule_bytes
        end = start + expected.granule_bytes
        found = [leaf for leaf in found if leaf.offset_bytes < end and leaf.end_bytes > start]
    first = min(found, key=lambda leaf: (leaf.offset_bytes, leaf.end_bytes), default=None)
    return None if first is None else first.path


def _covering_leaf(
    layout: Layout, segments: Segments, start: int, differs: npt.NDArray[np.bool_]
) -> str | None:
    """First leaf by offset that covers any of the segments that differ, counted from `start`."""
    before = np.append(0, np.cumsum(differs))
    low = np.clip(segments.leaf_starts - start, 0, differs.size)
    high = np.clip(segments.leaf_ends - start, 0, differs.size)
    covering = np.flatnonzero(before[high] > before[low])
    leaves = (layout.tensors[index] for index in covering.tolist())
    first = min(leaves, key=lambda leaf: (leaf.offset_bytes, leaf.end_bytes), default=None)
    return None if first is None else first.path


def _message(leaf: str | None, granule: int | None) -> str:
    if leaf is not None and granule is not None:
        return f"leaf {leaf} differs, first in granule {granule}"
    if leaf is not None:
        return f"leaf {leaf} differs, but no granule does: the digests contradict each other"
    if granule is not None:
        return f"granule {granule} differs in bytes that belong to no leaf"
    return "the bytes are equal, but topology or scalar values differ"
