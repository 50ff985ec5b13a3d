"""Segments: the pieces of an extent between granule and leaf boundaries, each read once.

CRCs compose: with `p[i]` the CRC of the first i segments, the CRC of segments i..j is
`p[j] xor shift(p[i], bytes of i..j)`, and `combine(a, 0, n)` is exactly that shift. So granules,
leaves (overlapping ones too) and the whole all follow from one CRC per segment, and no byte is
read twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from awscrt.checksums import combine_crc64nvme


@dataclass(frozen=True, slots=True)
class Segments:
    """Where the segments of one layout lie; the same for every block of a session."""

    granule_bytes: int
    #: Ascending, from 0 to the extent; segment i is bounds[i]..bounds[i + 1].
    bounds: tuple[int, ...]
    #: Index into `bounds` where each granule starts; one more for the end of the last.
    granule_starts: tuple[int, ...]
    #: Per leaf: indices into `bounds` of the start and the end of its span.
    leaf_ranges: tuple[tuple[int, int], ...]

    @property
    def granule_count(self) -> int:
        """Granules of the extent; the last one may be short."""
        return len(self.granule_starts) - 1

    @property
    def extent_bytes(self) -> int:
        """Bytes of all segments."""
        return self.bounds[-1]

    def run_bytes(self, first_granule: int, granule_count: int) -> tuple[int, int]:
        """Start and end of a run of granules."""
        start = self.granule_starts[first_granule]
        end = self.granule_starts[first_granule + granule_count]
        return self.bounds[start], self.bounds[end]


@lru_cache(maxsize=32)
def segments_of(
    extent_bytes: int, spans: tuple[tuple[int, int], ...], granule_bytes: int
) -> Segments:
    """The segments of an extent with these leaf spans (start, end in bytes)."""
    granule_edges = [*range(0, extent_bytes, granule_bytes), extent_bytes]
    if extent_bytes == 0:
        granule_edges = [0]
    edges = set(granule_edges)
    for start, end in spans:
        edges.update((start, end))
    bounds = sorted(edges)
    return Segments(
        granule_bytes=granule_bytes,
        bounds=tuple(bounds),
        granule_starts=tuple(bisect_left(bounds, edge) for edge in granule_edges),
        leaf_ranges=tuple(
            (bisect_left(bounds, start), bisect_left(bounds, end)) for start, end in spans
        ),
    )


class Prefixes:
    """CRCs of every prefix of the segments; any range's CRC in one step."""

    def __init__(self, segments: Segments, crcs: Sequence[int]) -> None:
        self._bounds = segments.bounds
        self._crcs = crcs
        self._prefix = [0]
        for index, crc in enumerate(crcs):
            size_bytes = self._bounds[index + 1] - self._bounds[index]
            self._prefix.append(combine_crc64nvme(self._prefix[-1], crc, size_bytes))

    def crc(self, start: int, end: int) -> int:
        """CRC of the bytes between two indices into `bounds`."""
        if end == start + 1:
            return self._crcs[start]
        size_bytes = self._bounds[end] - self._bounds[start]
        shifted: int = combine_crc64nvme(self._prefix[start], 0, size_bytes)
        return self._prefix[end] ^ shifted

    def whole(self) -> int:
        """CRC of all segments."""
        return self._prefix[-1]
