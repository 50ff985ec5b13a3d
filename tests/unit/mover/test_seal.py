"""Seal and answer: what the source says last on the wire, and what it believes of the reply."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.mover.chunking import CHUNK_INDEX_BITS, CHUNKS_MAX
from services.mover.offer import Frozen
from services.mover.seal import (
    ANSWER_BYTES,
    ANSWER_INDEX,
    SEAL_INDEX,
    Seal,
    SealFormat,
    is_answer,
    pack_answer,
)
from tests.unit.mover.cluster import layout_of
from worldline.errors import InvalidInput
from worldline.state.digest import GRANULE_BYTES
from worldline.state.segment_digests import SegmentDigests
from worldline.state.segments import segments_of

LAYOUT = layout_of()
FORMAT = SealFormat.of(LAYOUT, verification_on=True)
COUNT = segments_of(LAYOUT, GRANULE_BYTES).count
WORDS = st.integers(0, 2**64 - 1)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
CRCS = st.lists(WORDS, min_size=COUNT, max_size=COUNT)


def frozen(block_index: int = 9, value: Any = 9) -> Frozen:
    return Frozen(block_index, LAYOUT.with_scalars({LAYOUT.scalars[0].path: value}))


def a_seal(crcs: list[int] | None = None, **changes: Any) -> Seal:
    digests = SegmentDigests(np.array(crcs or [5] * COUNT, np.uint64), 3)
    return Seal(**{"sent_bytes": 7, "frozen": frozen(), "digests": digests, **changes})


@given(sent=WORDS, header=WORDS, crcs=CRCS, block_index=WORDS, value=INTEGERS)
def test_a_seal_survives_the_wire(
    sent: int, header: int, crcs: list[int], block_index: int, value: int
) -> None:
    digests = SegmentDigests(np.array(crcs, np.uint64), header)
    message = FORMAT.pack(Seal(sent, frozen(block_index, value), digests))
    assert message.nbytes == FORMAT.size_bytes
    again = FORMAT.unpack(message)
    assert again.digests is not None
    assert (again.sent_bytes, again.digests.header) == (sent, header)
    assert again.digests.crcs.tolist() == crcs
    assert again.frozen == frozen(block_index, value)


@given(sent=WORDS)
def test_a_seal_without_verification_has_no_digests(sent: int) -> None:
    plain = SealFormat.of(LAYOUT, verification_on=False)
    message = plain.pack(Seal(sent, frozen(), None))
    assert message.nbytes == plain.size_bytes
    assert plain.unpack(message) == Seal(sent, frozen(), None)


@given(crcs=CRCS, at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_seal_that_changed_is_refused(crcs: list[int], at: int, bit: int) -> None:
    message = FORMAT.pack(a_seal(crcs))
    message[at % message.nbytes] ^= 1 << bit
    with pytest.raises(InvalidInput) as caught:
        FORMAT.unpack(message)
    assert caught.value.field == "seal"


def test_a_seal_that_never_came_is_refused() -> None:
    with pytest.raises(InvalidInput):
        FORMAT.unpack(memoryview(bytearray(FORMAT.size_bytes)))


def test_a_seal_of_another_length_is_refused() -> None:
    message = FORMAT.pack(a_seal())
    with pytest.raises(InvalidInput):
        FORMAT.unpack(message[8:])


def test_scalars_may_grow_to_twice_their_length_and_no_further() -> None:
    """Both ends know from the order how much room there is; a world goes on where it was."""
    path = LAYOUT.scalars[0].path
    room = SealFormat.of(LAYOUT.with_scalars({path: b"x" * 1_000}), verification_on=True)
    assert room.unpack(room.pack(a_seal(frozen=frozen(value=b"y" * 2_000)))).frozen == frozen(
        value=b"y" * 2_000
    )
    with pytest.raises(InvalidInput) as caught:
        room.pack(a_seal(frozen=frozen(value=b"y" * 3_000)))
    assert caught.value.field == "go.scalars"


@pytest.mark.parametrize("promoted", [False, True])
def test_an_answer_is_told_from_none(promoted: bool) -> None:
    assert pack_answer(promoted=promoted).nbytes == ANSWER_BYTES
    assert is_answer(pack_answer(promoted=promoted))
    assert not is_answer(memoryview(bytearray(ANSWER_BYTES)))


def test_seal_and_answer_have_numbers_that_no_chunk_has() -> None:
    assert CHUNKS_MAX <= SEAL_INDEX < ANSWER_INDEX < 1 << CHUNK_INDEX_BITS
