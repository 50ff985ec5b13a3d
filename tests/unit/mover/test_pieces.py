"""Pieces: every byte once, on borders of granules, few of them, and small ones at the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.mover.pieces import pieces_of
from worldline.state.digest import GRANULE_BYTES

MEBIBYTE = GRANULE_BYTES


@given(st.integers(0, 200 * MEBIBYTE))
def test_pieces_cover_an_extent_and_end_small(extent_bytes: int) -> None:
    pieces = pieces_of(extent_bytes)
    ends = [piece.offset_bytes + piece.size_bytes for piece in pieces]
    assert [piece.offset_bytes for piece in pieces] == [0, *ends][: len(ends)]
    assert ends[-1:] == ([extent_bytes] if extent_bytes else [])
    assert [piece.index for piece in pieces] == list(range(len(pieces)))
    for piece in pieces:
        assert 0 < piece.size_bytes <= 16 * MEBIBYTE
        assert piece.offset_bytes == piece.first_granule * MEBIBYTE
        assert piece.granule_count == -(-piece.size_bytes // MEBIBYTE)
        left_bytes = extent_bytes - piece.offset_bytes - piece.size_bytes
        smallest = piece.size_bytes <= 4 * MEBIBYTE
        assert smallest or left_bytes > 11 * piece.size_bytes, "too little time to read it in"


def test_a_full_size_state_has_few() -> None:
    assert len(pieces_of(1_670_124_960)) == 118
