"""Seal and answer: what the source says last on the wire, and what it believes of the reply."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.mover.chunking import CHUNK_INDEX_BITS, CHUNKS_MAX
from services.mover.seal import (
    ANSWER_BYTES,
    ANSWER_INDEX,
    SEAL_INDEX,
    Seal,
    is_answer,
    pack_answer,
    pack_seal,
    seal_bytes,
    unpack_seal,
)
from worldline.errors import InvalidInput
from worldline.state.segment_digests import SegmentDigests

WORDS = st.integers(0, 2**64 - 1)


@given(sent=WORDS, header=WORDS, crcs=st.lists(WORDS, max_size=40))
def test_a_seal_survives_the_wire(sent: int, header: int, crcs: list[int]) -> None:
    digests = SegmentDigests(np.array(crcs, np.uint64), header)
    message = pack_seal(Seal(sent, digests))
    assert message.nbytes == seal_bytes(len(crcs))
    again = unpack_seal(message, verification_on=True)
    assert again.digests is not None
    assert (again.sent_bytes, again.digests.header) == (sent, header)
    assert again.digests.crcs.tolist() == crcs


@given(sent=WORDS)
def test_a_seal_without_verification_has_no_digests(sent: int) -> None:
    message = pack_seal(Seal(sent, None))
    assert message.nbytes == seal_bytes(None)
    assert unpack_seal(message, verification_on=False) == Seal(sent, None)


@given(
    crcs=st.lists(WORDS, min_size=1, max_size=9), at=st.integers(0, 10_000), bit=st.integers(0, 7)
)
def test_a_seal_that_changed_is_refused(crcs: list[int], at: int, bit: int) -> None:
    message = pack_seal(Seal(7, SegmentDigests(np.array(crcs, np.uint64), 3)))
    message[at % message.nbytes] ^= 1 << bit
    with pytest.raises(InvalidInput) as caught:
        unpack_seal(message, verification_on=True)
    assert caught.value.field == "seal"


def test_a_seal_that_never_came_is_refused() -> None:
    with pytest.raises(InvalidInput):
        unpack_seal(memoryview(bytearray(seal_bytes(4))), verification_on=True)


@pytest.mark.parametrize("promoted", [False, True])
def test_an_answer_is_told_from_none(promoted: bool) -> None:
    assert pack_answer(promoted=promoted).nbytes == ANSWER_BYTES
    assert is_answer(pack_answer(promoted=promoted))
    assert not is_answer(memoryview(bytearray(ANSWER_BYTES)))


def test_seal_and_answer_have_numbers_that_no_chunk_has() -> None:
    assert CHUNKS_MAX <= SEAL_INDEX < ANSWER_INDEX < 1 << CHUNK_INDEX_BITS
