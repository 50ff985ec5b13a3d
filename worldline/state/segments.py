"""Segments: the pieces of an extent between granule and leaf boundaries, each read once.

The digests of granules, leaves (overlapping ones too) and the whole all follow from one CRC per
segment (`ranges`), so no byte is read twice, and two ends need to compare nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from worldline.errors import InvalidInput
from worldline.state.gf2 import FixedFactors, Uint64s, crcs_of_zeros
from worldline.state.layout import Layout
from worldline.state.ranges import Indices, Ranges, shares_of

#: What the proto's uint32 holds.
GRANULE_BYTES_MAX = (1 << 32) - 1
#: Layouts whose segments are remembered; each costs about 1 KiB a segment.
_REMEMBERED_COUNT = 8


@dataclass(frozen=True, eq=False)
class Segments:
    """Where the segments of one layout lie; the same for every block of a session."""

    granule_bytes: int
    #: Ascending, from 0 to the extent; segment i is bounds[i]..bounds[i + 1].
    bounds: Indices
    #: Index into `bounds` where each granule starts; one more for the end of the last.
    granule_starts: Indices
    #: Per leaf: index into `bounds` of the start of its span.
    leaf_starts: Indices
    #: Per leaf: index into `bounds` of the end of its span.
    leaf_ends: Indices

    @property
    def count(self) -> int:
        """Segments of the extent."""
        return len(self.bounds) - 1

    @property
    def granule_count(self) -> int:
        """Granules of the extent; the last one may be short."""
        return len(self.granule_starts) - 1

    @property
    def extent_bytes(self) -> int:
        """Bytes of all segments."""
        return int(self.bounds[-1])

    def run(self, first_granule: int, granule_count: int) -> range:
        """Indices of the segments of a run of granules.

        Raises:
            InvalidInput: the run lies outside the extent.
        """
        if first_granule < 0 or granule_count < 0:
            raise InvalidInput("a run of granules is not negative", field="first_granule")
        if first_granule + granule_count > self.granule_count:
            raise InvalidInput(
                f"granules {first_granule}+{granule_count} of {self.granule_count}",
                field="granule_count",
            )
        starts = self.granule_starts
        return range(int(starts[first_granule]), int(starts[first_granule + granule_count]))

    def check(self, crcs: Uint64s, name: str = "segment_crcs") -> Uint64s:
        """The array, if it is one CRC per segment.

        Raises:
            InvalidInput: anything but a uint64 array of `count` elements; `field` is the name.
        """
        if not isinstance(crcs, np.ndarray) or crcs.dtype != np.uint64:
            raise InvalidInput(f"{name}: no array of uint64", field=name)
        if crcs.shape != (self.count,):
            raise InvalidInput(
                f"{name}: shape {crcs.shape}, the layout has {self.count} segments", field=name
            )
        return crcs

    def runs(self, first_granules: Indices, granule_counts: Indices) -> Ranges:
        """Composes the CRCs of these runs of granules, all of which lie in the extent."""
        starts = self.granule_starts[first_granules]
        ends = self.granule_starts[first_granules + granule_counts]
        return Ranges.of(self.bounds, self.shares, starts, ends)

    @cached_property
    def shares(self) -> FixedFactors:
        """What each segment's CRC is multiplied by in any composition; made on first use."""
        return shares_of(self.bounds)

    @cached_property
    def zeros(self) -> Uint64s:
        """The CRC of each segment where it is all zeros; made on first use, some milliseconds."""
        return crcs_of_zeros(np.diff(self.bounds))

    @cached_property
    def composer(self) -> Composer:
        """Composes CRCs of these segments; made on first use."""
        return Composer.of(self)


@dataclass(frozen=True, eq=False)
class Composer:
    """Granules, leaves and the whole extent from the CRCs of segments, all at once."""

    segments: Segments
    #: Granules, then leaves, then the whole.
    _ranges: Ranges

    @classmethod
    def of(cls, segments: Segments) -> Composer:
        """The composer of these segments; milliseconds for thousands of them."""
        starts = np.concatenate((segments.granule_starts[:-1], segments.leaf_starts, [0]))
        ends = np.concatenate((segments.granule_starts[1:], segments.leaf_ends, [segments.count]))
        return cls(segments, Ranges.of(segments.bounds, segments.shares, starts, ends))

    def compose(self, crcs: Uint64s) -> tuple[Uint64s, Uint64s, int]:
        """CRC of each granule, of each leaf's span in the order of the layout, and of the extent.

        Raises:
            InvalidInput: the array is not one uint64 per segment.
        """
        ranges = self._ranges.compose(self.segments.check(crcs))
        granule_count = self.segments.granule_count
        return ranges[:granule_count], ranges[granule_count:-1], int(ranges[-1])


def segments_of(layout: Layout, granule_bytes: int) -> Segments:
    """The segments of a layout; remembered for the last few layouts.

    Raises:
        InvalidInput: the granule is not 1 to 2**32 - 1 bytes.
    """
    if type(granule_bytes) is not int or not 0 < granule_bytes <= GRANULE_BYTES_MAX:
        raise InvalidInput(f"granule of {granule_bytes} bytes", field="granule_bytes")
    return _remembered(_Key(layout.topology_hash, granule_bytes, layout))


@dataclass(frozen=True, slots=True)
class _Key:
    """The hash stands for the layout: comparing hundreds of leaves would cost a millisecond."""

    topology_hash: bytes
    granule_bytes: int
    layout: Layout = field(compare=False)


@lru_cache(maxsize=_REMEMBERED_COUNT)
def _remembered(key: _Key) -> Segments:
    extent_bytes = key.layout.extent_bytes
    spans = [(leaf.offset_bytes, leaf.end_bytes) for leaf in key.layout.tensors]
    starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
    granule_edges = np.arange(0, extent_bytes, key.granule_bytes, dtype=np.int64)
    granule_edges = np.append(granule_edges, extent_bytes)
    bounds = np.unique(np.concatenate((granule_edges, starts, ends)))
    return Segments(
        granule_bytes=key.granule_bytes,
        bounds=_frozen(bounds),
        granule_starts=_frozen(np.searchsorted(bounds, granule_edges)),
        leaf_starts=_frozen(np.searchsorted(bounds, starts)),
        leaf_ends=_frozen(np.searchsorted(bounds, ends)),
    )


def _frozen(indices: Indices) -> Indices:
    indices.setflags(write=False)
    return indices
