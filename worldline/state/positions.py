"""Positions: the parts of a leaf along its window, and how many bytes of a run fall into each.

Caches of world models hold their window along dimension 1: latent frames, or the tokens of latent
frames, one after the other. A position is an equal part of that dimension; 24 of them part windows
of 2, 3, 4, 6, 8, 12 and 24 frames between frames.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worldline.state.dtypes import itemsize_bytes
from worldline.state.leaf import TensorLeaf
from worldline.state.ranges import Indices
from worldline.state.stride import contiguous_stride

#: The dimension that the window lies along.
WINDOW_DIMENSION = 1
POSITIONS_MAX = 24

Bytes2d = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """Where the positions of one leaf lie: in each row, one after the other.

    A row is what one index of dimension 0 has; a leaf of one row has its positions in one piece.
    """

    #: Offsets in a row, one more than there are positions.
    edges_bytes: Indices
    row_count: int

    @property
    def count(self) -> int:
        """Positions of the window."""
        return len(self.edges_bytes) - 1

    @property
    def shortest_bytes(self) -> int:
        """The shortest contiguous piece of one position: a longer granule mixes positions."""
        return int(np.diff(self.edges_bytes).min())

    @property
    def sizes_bytes(self) -> Indices:
        """Bytes of each position in the whole leaf."""
        return np.diff(self.edges_bytes) * self.row_count

    def overlaps(self, starts_bytes: Indices, ends_bytes: Indices) -> Bytes2d:
        """Bytes of each run [start, end) of the leaf in each position, (runs, positions)."""
        return self._before(ends_bytes) - self._before(starts_bytes)

    def _before(self, offsets_bytes: Indices) -> Bytes2d:
        """Bytes of each position that lie before an offset in the leaf, (offsets, positions)."""
        rows, within = np.divmod(offsets_bytes, self.edges_bytes[-1])
        lengths = np.diff(self.edges_bytes)
        begun = np.clip(within[:, None] - self.edges_bytes[:-1], 0, lengths)
        return rows[:, None] * lengths + begun


def positions_of(leaf: TensorLeaf) -> Positions | None:
    """The positions of a leaf; None where it has no window or is not row-major in memory."""
    if len(leaf.shape) <= WINDOW_DIMENSION or 0 in leaf.shape or not _is_row_major(leaf):
        return None
    length = leaf.shape[WINDOW_DIMENSION]
    if length < 2:
        return None
    item_bytes = itemsize_bytes(leaf.dtype)
    for size in leaf.shape[WINDOW_DIMENSION + 1 :]:
        item_bytes *= size
    count = min(length, POSITIONS_MAX)
    edges = np.arange(count + 1, dtype=np.int64) * length // count
    return Positions(edges * item_bytes, leaf.shape[0])


def _is_row_major(leaf: TensorLeaf) -> bool:
    """Whether elements lie one after the other; strides of dimensions of one index mean nothing."""
    wanted = contiguous_stride(leaf.shape)
    return all(
        size == 1 or step == dense
        for size, step, dense in zip(leaf.shape, leaf.stride, wanted, strict=True)
    )
