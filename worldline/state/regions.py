"""Regions: the runs of bytes that leaves occupy together, derived from their spans.

Leaves whose bounding spans overlap form one region, the union of the spans; so do chains of them.
Spans that only touch stay apart. An empty span is a region of its own, at 0. Regions are therefore
a function of the leaves' offsets, and a layout has exactly one right list of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from worldline.state.leaf import Region


def derive_regions(spans: Sequence[tuple[int, int]]) -> tuple[tuple[Region, ...], tuple[int, ...]]:
    """Regions by ascending offset, and for each span the index of its region.

    `spans` are (start, end) in bytes, in any order and any address space; equal starts keep the
    order of the input, so the result is the same on both ends.
    """
    order = sorted(range(len(spans)), key=lambda index: _key(spans[index], index))
    regions: list[Region] = []
    member_of = [0] * len(spans)
    for index in order:
        start, end = spans[index]
        if end == start:
            regions.append(Region(0, 0))
        elif regions and start < regions[-1].end_bytes:
            last = regions[-1]
            regions[-1] = Region(last.offset_bytes, max(last.end_bytes, end) - last.offset_bytes)
        else:
            regions.append(Region(start, end - start))
        member_of[index] = len(regions) - 1
    return tuple(regions), tuple(member_of)


def _key(span: tuple[int, int], index: int) -> tuple[int, int, int]:
    """Empty spans first (they lie at 0), then by start, then by input order."""
    start, end = span
    return (0, 0, index) if start == end else (1, start, index)
