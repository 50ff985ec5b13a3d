"""Piece reading: what it says of a copy is what reading every segment says of it."""

from __future__ import annotations

import random

import numpy as np
import pytest
from awscrt.checksums import crc64nvme

from services.mover.piecereading import PieceReading
from services.mover.pieces import pieces_of
from tests.flips import flips, world_layout
from tests.unit.mover.cluster import layout_of
from worldline.errors import IntegrityError, InvalidInput, InvariantBroken
from worldline.state import digest
from worldline.state.difference import Difference, compare_segments
from worldline.state.digest import GRANULE_BYTES, Digester
from worldline.state.gf2 import Uint64s
from worldline.state.layout import Layout

MEBIBYTE = GRANULE_BYTES
#: Large pieces, then small ones, a short last granule; leaves of one byte beside borders of pieces.
LARGE = layout_of((16 * MEBIBYTE - 1, 1, 1, 40 * MEBIBYTE + 77, *[1] * 50, 33 * MEBIBYTE + 5))


class Source:
    """What a slot was digested to."""

    def __init__(self, layout: Layout, data: bytes | bytearray) -> None:
        self._digester = Digester(layout)
        self._digester.update(0, self._digester.granule_count, memoryview(data))

    def segment_crcs(self) -> Uint64s:
        return self._digester.segment_crcs()


def read_all(layout: Layout, source: Source, copy: bytearray) -> PieceReading:
    view = memoryview(copy)
    reading = PieceReading(layout, source, view)
    for piece in pieces_of(layout.extent_bytes):
        reading.read(piece, view[piece.offset_bytes : piece.offset_bytes + piece.size_bytes])
    return reading


def difference(layout: Layout, source: Source, copy: bytearray) -> Difference | None:
    crcs = read_all(layout, source, copy).segment_crcs()
    return compare_segments(layout, GRANULE_BYTES, source.segment_crcs(), crcs)


@pytest.mark.parametrize("sizes", [(0,), (1,), (MEBIBYTE,), (4 * MEBIBYTE + 1, 3, 0, 5)])
def test_an_equal_copy_has_the_sources_crcs(sizes: tuple[int, ...]) -> None:
    layout = layout_of(sizes)
    data = random.Random(1).randbytes(layout.extent_bytes)
    source = Source(layout, data)
    crcs = read_all(layout, source, bytearray(data)).segment_crcs()
    assert crcs.tolist() == source.segment_crcs().tolist()


def test_a_bit_in_any_piece_is_named_as_by_reading_all_segments() -> None:
    data = bytearray(random.Random(2).randbytes(LARGE.extent_bytes))
    source = Source(LARGE, data)
    pieces = pieces_of(LARGE.extent_bytes)
    assert {piece.size_bytes for piece in pieces} > {6 * MEBIBYTE, 4 * MEBIBYTE}
    dice = random.Random(3)
    for piece in pieces:
        last = piece.size_bytes - 1
        for at in (0, dice.randint(0, last), last):
            offset, mask = piece.offset_bytes + at, 1 << dice.randrange(8)
            data[offset] ^= mask
            found = difference(LARGE, source, data)
            actual = Source(LARGE, data).segment_crcs()
            assert found is not None
            assert found.granule == offset // MEBIBYTE
            assert found == compare_segments(LARGE, MEBIBYTE, source.segment_crcs(), actual)
            data[offset] ^= mask
    assert difference(LARGE, source, data) is None


def test_the_battery() -> None:
    layout = world_layout()
    data = bytearray(random.Random(4).randbytes(layout.extent_bytes))
    source = Source(layout, data)
    for flip in flips(layout, seed=21):
        flip.apply(memoryview(data))
        found = difference(layout, source, data)
        assert found is not None, flip
        assert (found.leaf, found.granule) == flip.found
        flip.apply(memoryview(data))


def test_of_many_pieces_that_differ_the_crcs_are_the_copys() -> None:
    data = bytearray(random.Random(5).randbytes(LARGE.extent_bytes))
    source = Source(LARGE, data)
    for offset in (3, 20 * MEBIBYTE, 20 * MEBIBYTE + 1, LARGE.extent_bytes - 1):
        data[offset] ^= 1
    crcs = read_all(LARGE, source, data).segment_crcs()
    assert np.array_equal(crcs, Source(LARGE, data).segment_crcs())


def test_a_piece_that_differed_once_is_never_taken_as_equal() -> None:
    """The bit was wrong when the copy was read, and is right when it is read again."""
    layout = layout_of()
    data = bytearray(random.Random(6).randbytes(layout.extent_bytes))
    source = Source(layout, data)
    data[5 * MEBIBYTE] ^= 1
    reading = read_all(layout, source, data)
    data[5 * MEBIBYTE] ^= 1
    with pytest.raises(IntegrityError, match="from granule 4 on") as caught:
        reading.segment_crcs()
    assert (caught.value.leaf, caught.value.granule) == (None, None)


def test_a_piece_that_was_not_read_is_no_piece_that_is_equal() -> None:
    layout = layout_of()
    source = Source(layout, bytes(layout.extent_bytes))
    view = memoryview(bytearray(layout.extent_bytes))
    reading = PieceReading(layout, source, view)
    first, second, *_ = pieces_of(layout.extent_bytes)
    reading.read(first, view[: first.size_bytes])
    with pytest.raises(InvariantBroken) as caught:
        reading.segment_crcs()
    assert caught.value.granule == second.first_granule
    with pytest.raises(InvalidInput):
        reading.read(second, view[: second.size_bytes - 1])


def test_one_call_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(LARGE.extent_bytes)
    source = Source(LARGE, data)
    calls: list[int] = []

    def counted(part: memoryview) -> int:
        calls.append(part.nbytes)
        return int(crc64nvme(part))

    monkeypatch.setattr(digest, "crc64nvme", counted)
    read_all(LARGE, source, bytearray(data)).segment_crcs()
    assert calls == [piece.size_bytes for piece in pieces_of(LARGE.extent_bytes)]
