"""Tracer: the digests of successive boundaries turned into flags, as they come.

It keeps the digests of the baseline and of the last boundary, and nothing of those before.
"""

from __future__ import annotations

import numpy as np

from worldline.errors import InvalidInput
from worldline.state.boundary import Boundary
from worldline.state.gf2 import Uint64s


class Tracer:
    """For one state of one layout; `baseline` is one CRC per segment, as all that follow."""

    def __init__(self, baseline: Uint64s) -> None:
        self._baseline = baseline
        self._before: Uint64s | None = None

    def boundary(
        self, block_index: int, at_ms: float, read_ms: float, segment_crcs: Uint64s
    ) -> Boundary:
        """The next boundary; see `Boundary` for what the numbers are.

        Raises:
            InvalidInput: the digests are of another number of segments.
        """
        if segment_crcs.shape != self._baseline.shape:
            raise InvalidInput(
                f"{segment_crcs.size} segments where the baseline has {self._baseline.size}",
                field="segment_crcs",
            )
        before, self._before = self._before, segment_crcs
        return Boundary(
            block_index=block_index,
            at_ms=at_ms,
            read_ms=read_ms,
            changed=np.zeros(segment_crcs.shape, np.bool_)
            if before is None
            else segment_crcs != before,
            differs=segment_crcs != self._baseline,
        )
