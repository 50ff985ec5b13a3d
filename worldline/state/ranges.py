"""Ranges: CRCs of runs of whole segments from the CRCs of the segments, all at once.

With `end` the offset behind a segment, crc * x^(-8 * end) is its share in the CRC of anything that
contains it: shares add up by xor, and the sum times x^(8 * end of the range) is the CRC of a range
(see `gf2`). All factors depend on the layout alone and are made once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from worldline.state.gf2 import FixedFactors, Uint64s, powers_of_x8

Indices = npt.NDArray[np.int64]


def shares_of(bounds: Indices) -> FixedFactors:
    """x^(-8 * end) of each segment between these bounds."""
    return FixedFactors(powers_of_x8(-bounds[1:]))


@dataclass(frozen=True, eq=False)
class Ranges:
    """Ranges of the segments of one layout, which may overlap, be one segment, or none."""

    _shares: FixedFactors = field(repr=False)
    #: Index of the first segment of each range, and of the one behind its last.
    _starts: Indices
    _ends: Indices
    #: Which ranges are more or less than one segment.
    _composed: Indices
    #: x^(8 * end) per composed range.
    _factors: FixedFactors = field(repr=False)

    @classmethod
    def of(cls, bounds: Indices, shares: FixedFactors, starts: Indices, ends: Indices) -> Ranges:
        """Ranges by indices into the segments' bounds; milliseconds for thousands of them."""
        composed = np.flatnonzero(ends - starts != 1)
        factors = FixedFactors(powers_of_x8(bounds[ends[composed]]))
        return cls(shares, starts, ends, composed, factors)

    def compose(self, crcs: Uint64s) -> Uint64s:
        """CRC of each range; `crcs` is one per segment, which `Segments.check` has seen."""
        # One more at the end stands for the ranges that begin behind the last segment.
        ranges = np.append(crcs, np.uint64(0))[self._starts]
        sums = np.zeros(crcs.size + 1, np.uint64)
        np.bitwise_xor.accumulate(self._shares.multiply(crcs), out=sums[1:])
        composed = sums[self._ends[self._composed]] ^ sums[self._starts[self._composed]]
        ranges[self._composed] = self._factors.multiply(composed)
        return ranges
