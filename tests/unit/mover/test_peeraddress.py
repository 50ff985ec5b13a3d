"""Addresses and offers: exact both ways, and whatever else comes is a typed error."""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.mover.transport import rendezvous
from services.mover.transport.peeraddress import (
    REGIONS_MAX,
    MemoryFile,
    PeerAddress,
    own_address,
    peer_address,
)
from services.mover.transport.rendezvous import Place
from worldline.errors import TransferFailed

UINT64 = st.integers(0, 2**64 - 1)
FILES = st.builds(MemoryFile, st.integers(0, 2**31 - 1), UINT64, UINT64, UINT64)
#: A digest: never all zeros.
HOSTS = st.just(b"") | st.binary(min_size=16, max_size=16).filter(lambda host: host[-1] != 0)
ADDRESSES = st.builds(
    PeerAddress,
    st.binary(min_size=1, max_size=400),
    HOSTS,
    st.integers(0, 2**32 - 1),
    st.lists(FILES, max_size=8).map(tuple),
)


@given(ADDRESSES)
def test_an_address_survives_the_way(address: PeerAddress) -> None:
    parsed = peer_address(address.pack())
    assert (parsed.worker, parsed.pid, parsed.files) == (address.worker, address.pid, address.files)
    assert bool(parsed.host) == bool(address.host)
    assert parsed.host in (address.host, b"")


@given(ADDRESSES, st.data())
def test_an_address_that_was_cut_or_changed_is_refused_or_another(
    address: PeerAddress, draw: st.DataObject
) -> None:
    packed = bytearray(address.pack())
    head = len(packed) - len(address.worker)
    with pytest.raises(TransferFailed):
        peer_address(bytes(packed[: draw.draw(st.integers(0, head))]))
    at = draw.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= 1 << draw.draw(st.integers(0, 7))
    with contextlib.suppress(TransferFailed):
        assert peer_address(bytes(packed)).pack() == bytes(packed)


@given(st.binary(max_size=200))
def test_other_bytes_are_no_address(data: bytes) -> None:
    with pytest.raises(TransferFailed):
        peer_address(b"x" + data)


def test_only_so_many_files_are_named() -> None:
    files = tuple(MemoryFile(number, 1, number, 1) for number in range(REGIONS_MAX + 3))
    assert peer_address(PeerAddress(b"w", b"h" * 16, 1, files).pack()).files == files[:REGIONS_MAX]


def test_neighbours_are_of_one_host_and_not_one_worker() -> None:
    descriptor = os.memfd_create("own")
    try:
        own = own_address(b"own", [descriptor], mappable=True)
        assert own.files == (MemoryFile.of(descriptor),)
    finally:
        os.close(descriptor)
    other = own_address(b"other", [], mappable=True)
    assert own.is_neighbour_of(other)
    assert other.is_neighbour_of(own)
    assert not own.is_neighbour_of(own)
    for stranger in (own_address(b"other", [], mappable=False), PeerAddress(b"other", b"h" * 16)):
        assert not own.is_neighbour_of(stranger)
        assert not stranger.is_neighbour_of(own)


@given(FILES, st.data())
def test_an_offer_survives_the_way(file: MemoryFile, draw: st.DataObject) -> None:
    offset_bytes = draw.draw(st.integers(0, file.size_bytes))
    size_bytes = draw.draw(st.integers(0, file.size_bytes - offset_bytes))
    place = Place(file, offset_bytes, size_bytes)
    message = rendezvous.offer(place, size_bytes)
    assert len(message) == rendezvous.OFFER_BYTES
    assert rendezvous.place_of(message) == place


@given(UINT64)
def test_bytes_that_follow_have_no_place(size_bytes: int) -> None:
    assert rendezvous.place_of(rendezvous.offer(None, size_bytes)) is None


@given(FILES, st.integers(1, 2**32), st.data())
def test_a_place_beyond_its_file_is_refused(
    file: MemoryFile, beyond_bytes: int, draw: st.DataObject
) -> None:
    """Wherever it begins, at the file's start too: reading it would end the process."""
    offset_bytes = draw.draw(st.integers(0, file.size_bytes + beyond_bytes))
    size_bytes = file.size_bytes + beyond_bytes - offset_bytes
    if max(offset_bytes, size_bytes) >= 2**64:
        return
    message = rendezvous.offer(Place(file, offset_bytes, size_bytes), size_bytes)
    with pytest.raises(TransferFailed) as caught:
        rendezvous.place_of(message)
    assert caught.value.reason == "PROTOCOL_BROKEN"


def test_a_place_in_no_descriptor_is_refused() -> None:
    message = rendezvous.offer(Place(MemoryFile(-7, 1, 1, 4096), 0, 10), 10)
    with pytest.raises(TransferFailed):
        rendezvous.place_of(message)


@given(st.binary(min_size=rendezvous.OFFER_BYTES, max_size=rendezvous.OFFER_BYTES))
def test_other_bytes_are_no_offer(message: bytes) -> None:
    if message.startswith(b"WLO1"):
        return
    with pytest.raises(TransferFailed):
        rendezvous.place_of(message)
