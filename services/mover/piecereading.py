"""Piece reading: what has digested a copy piece by piece, one call each.

A call of the CRC gives the interpreter up and takes it again, when whoever has it lets it go:
thousands of calls, one for each segment, wait thousands of times. What a copy must be equal to was
digested by segment, and the CRC of a piece follows from those of its segments: only a piece that
differs is read again by segment, to name what differs in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from services.mover.chunking import Chunk
from services.mover.hostcrossing import part_of
from services.mover.pieces import pieces_of
from worldline.errors import IntegrityError, InvalidInput, InvariantBroken
from worldline.state.digest import GRANULE_BYTES, crc64, crcs_of_run
from worldline.state.gf2 import Uint64s
from worldline.state.layout import Layout
from worldline.state.ranges import Ranges
from worldline.state.segments import Segments, segments_of

#: Layouts of which factors are remembered; they cost milliseconds to make.
_REMEMBERED_COUNT = 8


class Reading(Protocol):
    """What has digested one side."""

    def segment_crcs(self) -> Uint64s:
        """CRC of every segment, once all was read."""


@dataclass(frozen=True, slots=True)
class _Expected:
    """What the source has digested."""

    by_segment: Uint64s
    by_piece: Uint64s


class PieceReading:
    """Reads a copy of what `source` has digested.

    `read` may be called from several threads, for different pieces.
    """

    def __init__(self, layout: Layout, source: Reading, copy: memoryview) -> None:
        self._segments = segments_of(layout, GRANULE_BYTES)
        self._pieces = pieces_of(layout.extent_bytes)
        self._ranges = _ranges_of(self._segments)
        self._source = source
        self._copy = copy
        self._crcs = np.zeros(len(self._pieces), np.uint64)
        self._was_read = np.zeros(len(self._pieces), np.bool_)
        self._expected: _Expected | None = None

    def expect(self) -> _Expected:
        """Have ready what the pieces are compared with: waits for the source's digest."""
        if self._expected is None:
            source = self._source.segment_crcs()
            self._expected = _Expected(source, self._ranges.compose(source))
        return self._expected

    def read(self, piece: Chunk, part: memoryview) -> None:
        """Digest a piece; `part` is exactly its bytes, where they lie.

        Raises:
            InvalidInput: the part has another size.
        """
        if part.nbytes != piece.size_bytes:
            raise InvalidInput(f"{part.nbytes} bytes for {piece.size_bytes}", field="part")
        self._crcs[piece.index] = crc64(part)
        self._was_read[piece.index] = True

    def segment_crcs(self) -> Uint64s:
        """CRC of every segment of the copy: the source's, where the piece is proven equal.

        Raises:
            InvariantBroken: a piece was never given to `read`.
            IntegrityError: pieces differed, and no segment does.
        """
        if not self._was_read.all():
            granule = self._pieces[int(np.argmin(self._was_read))].first_granule
            raise InvariantBroken(f"granule {granule} was never digested", granule=granule)
        expected = self.expect()
        source = expected.by_segment
        differing = np.flatnonzero(expected.by_piece != self._crcs)
        crcs = source.copy()
        for index in differing:
            piece = self._pieces[index]
            run = self._segments.run(piece.first_granule, piece.granule_count)
            crcs[run.start : run.stop] = crcs_of_run(
                self._segments, run, part_of(self._copy, piece)
            )
        # Memory that gives other bytes at another reading proves nothing, whatever it gives now.
        if differing.size and np.array_equal(crcs, source):
            first = self._pieces[differing[0]].first_granule
            raise IntegrityError(
                "the parked copy differed from the slot when it was first read, from granule "
                f"{first} on, and did not when it was read again",
                leaf=None,
                granule=None,
            )
        return crcs


@lru_cache(maxsize=_REMEMBERED_COUNT)
def _ranges_of(segments: Segments) -> Ranges:
    """Composes the pieces of a layout's extent; `segments_of` gives the same object every time."""
    pieces = pieces_of(segments.extent_bytes)
    return segments.runs(
        np.array([piece.first_granule for piece in pieces], np.int64),
        np.array([piece.granule_count for piece in pieces], np.int64),
    )
