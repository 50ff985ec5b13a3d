"""Segment digests: what one end of a push says of the bytes that it read.

The CRC of every segment of a layout, and that of what the bytes mean. Two ends compare these and
nothing else while a world stands still; granules, leaves and the whole follow from them later
(`digest.compose`).
"""

from __future__ import annotations

from dataclasses import dataclass

from awscrt.checksums import crc64nvme

from worldline.state.difference import Difference, compare_segments
from worldline.state.digest import GRANULE_BYTES, compose
from worldline.state.gf2 import Uint64s
from worldline.state.layout import Layout
from worldline.state.manifest import Digests
from worldline.state.topology import scalars_encoding


@dataclass(frozen=True, slots=True, eq=False)
class SegmentDigests:
    """One uint64 per segment of the layout, and the CRC of its topology hash and scalars."""

    crcs: Uint64s
    header: int

    def digests(self, layout: Layout) -> Digests:
        """Granules, leaves and the whole."""
        return compose(layout, self.crcs)


def segment_digests(layout: Layout, crcs: Uint64s) -> SegmentDigests:
    """What was read, with what it means: `layout` has the scalars of the same block."""
    header = layout.topology_hash + scalars_encoding(layout.scalars)
    return SegmentDigests(crcs, crc64nvme(header))


def compare_segment_digests(
    layout: Layout, expected: SegmentDigests, actual: SegmentDigests
) -> Difference | None:
    """None where bytes and meaning are equal; else the first difference. Microseconds.

    Raises:
        InvalidInput: either side cannot be of this layout.
    """
    difference = compare_segments(layout, GRANULE_BYTES, expected.crcs, actual.crcs)
    if difference is None and expected.header != actual.header:
        message = "the bytes are equal, but topology or scalar values differ"
        return Difference(leaf=None, granule=None, message=message)
    return difference
