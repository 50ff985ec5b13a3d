"""The go: what was frozen reaches the target whole, and as soon as the bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.mover.chunking import CHUNK_INDEX_BITS
from services.mover.go import GO_INDEX, GoFormat
from services.mover.offer import Frozen
from services.mover.seal import ANSWER_INDEX, SEAL_INDEX
from tests.unit.mover.cluster import Cluster, layout_of
from worldline.errors import InvalidInput

LAYOUT = layout_of()
PATH = LAYOUT.scalars[0].path
FORMAT = GoFormat.of(LAYOUT)
WORDS = st.integers(0, 2**64 - 1)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.binary(max_size=16),
)


def frozen(block_index: int = 9, value: Any = 9) -> Frozen:
    return Frozen(block_index, LAYOUT.with_scalars({PATH: value}))


@given(block_index=WORDS, value=SCALARS)
def test_a_go_survives_the_wire(block_index: int, value: Any) -> None:
    message = FORMAT.pack(frozen(block_index, value))
    assert message.nbytes == FORMAT.size_bytes
    assert FORMAT.unpack(message) == frozen(block_index, value)


@given(value=SCALARS, at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_go_that_changed_is_refused(value: Any, at: int, bit: int) -> None:
    message = FORMAT.pack(frozen(value=value))
    message[at % message.nbytes] ^= 1 << bit
    with pytest.raises(InvalidInput) as caught:
        FORMAT.unpack(message)
    assert caught.value.field == "go"


def test_a_go_that_never_came_or_was_cut_is_refused() -> None:
    with pytest.raises(InvalidInput):
        FORMAT.unpack(memoryview(bytearray(FORMAT.size_bytes)))
    with pytest.raises(InvalidInput):
        FORMAT.unpack(FORMAT.pack(frozen())[8:])


def test_scalars_may_grow_to_twice_their_length_and_no_further() -> None:
    """Both ends know from the order how much room there is; a world goes on where it was."""
    room = GoFormat.of(LAYOUT.with_scalars({PATH: b"x" * 1_000}))
    grown = frozen(value=b"y" * 2_000)
    assert room.unpack(room.pack(grown)) == grown
    with pytest.raises(InvalidInput) as caught:
        room.pack(frozen(value=b"y" * 3_000))
    assert caught.value.field == "go.scalars"


def test_it_has_a_number_that_nothing_else_has() -> None:
    assert SEAL_INDEX < ANSWER_INDEX < GO_INDEX < 1 << CHUNK_INDEX_BITS


async def test_what_was_frozen_is_what_lands(cluster: Cluster) -> None:
    manifest = cluster.manifest(LAYOUT)
    slot, ticket = await cluster.live_slot(LAYOUT), cluster.ticket(LAYOUT)
    reserved = await cluster.reserve(ticket, LAYOUT)
    reservation = cluster.nodes["b"].runtime.reservations.get(reserved.reservation_id)
    await cluster.push(ticket, manifest, reserved.reservation_id, slot, promote=True)
    assert reservation.staged is not None
    assert reservation.staged.block_index == manifest.block_index
    assert reservation.staged.layout == manifest.layout
