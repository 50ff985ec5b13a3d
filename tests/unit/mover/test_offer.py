"""Messages of the wire: parsed once, refused with the field named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.mover.offer import (
    Offer,
    Verification,
    grant_from_proto,
    offer_from_proto,
    push_from_proto,
)
from services.mover.pushing import offer_to_proto
from services.mover.slots import SlotRef, ref_from_proto, ref_to_proto
from tests.unit.mover.cluster import MEBIBYTE
from tests.unit.mover.test_reservation import manifest
from worldline.errors import InvalidInput, VersionSkew, WorldlineError
from worldline.state.codec import manifest_to_proto
from worldline.ticket import SignedTicket, ticket_to_proto
from worldline.v1 import move_pb2, mover_pb2

TICKET = SignedTicket(b"claims", b"signature", b"key")


def an_offer(**changes: Any) -> Offer:
    values: dict[str, Any] = {
        "ticket": TICKET,
        "reservation_id": "r",
        "manifest": manifest(),
        "verification": Verification.PIPELINED,
        "chunk_bytes": 2 * MEBIBYTE,
        "window_chunks": 4,
        "worker_address": b"address",
    }
    return Offer(**{**values, **changes})


@given(
    chunk=st.integers(1, 256),
    window=st.integers(1, 64),
    verification=st.sampled_from(Verification),
    address=st.binary(min_size=1, max_size=300),
)
def test_an_offer_survives_the_wire(
    chunk: int, window: int, verification: Verification, address: bytes
) -> None:
    offer = an_offer(
        chunk_bytes=chunk * MEBIBYTE,
        window_chunks=window,
        verification=verification,
        worker_address=address,
    )
    sent = offer_to_proto(offer).SerializeToString()
    assert offer_from_proto(mover_pb2.LandOffer.FromString(sent)) == offer


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reservation_id", ""),
        ("verification", 0),
        ("verification", 9),
        ("chunk_bytes", 0),
        ("chunk_bytes", MEBIBYTE + 1),
        ("chunk_bytes", 512 * MEBIBYTE),
        ("window_chunks", 0),
        ("window_chunks", 65),
        ("worker_address", b""),
        ("worker_address", b"x" * 65_537),
    ],
)
def test_a_malformed_offer_names_the_field(field: str, value: Any) -> None:
    message = offer_to_proto(an_offer())
    setattr(message, field, value)
    with pytest.raises(InvalidInput) as caught:
        offer_from_proto(message)
    assert caught.value.field == field


@pytest.mark.parametrize("field", ["ticket", "manifest"])
def test_an_offer_without_a_part(field: str) -> None:
    message = offer_to_proto(an_offer())
    message.ClearField(field)
    with pytest.raises(InvalidInput) as caught:
        offer_from_proto(message)
    assert caught.value.field is not None
    assert caught.value.field.startswith(field)


def test_another_version_is_refused_whatever_else_it_says() -> None:
    with pytest.raises(VersionSkew):
        offer_from_proto(mover_pb2.LandOffer(protocol_version=2))


@given(st.binary(max_size=200))
def test_arbitrary_offers_parse_or_are_refused(data: bytes) -> None:
    try:
        message = mover_pb2.LandOffer.FromString(data)
    except Exception:
        return
    message.protocol_version = 1
    try:
        offer_from_proto(message)
    except WorldlineError as error:
        assert error.reason in {"INVALID_INPUT", "VERSION_SKEW"}  # noqa: PT017


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"chunk_bytes": MEBIBYTE}, "grant.chunk_bytes"),
        ({"tag_base": 1}, "grant.tag_base"),
        ({"window_chunks": 5}, "grant.window_chunks"),
        ({"window_chunks": 0}, "grant.window_chunks"),
        ({"lease_ms": 0}, "grant.lease_ms"),
        ({"worker_address": b""}, "worker_address"),
    ],
)
def test_a_grant_must_fit_the_offer(changes: dict[str, Any], field: str) -> None:
    values: dict[str, Any] = {
        "worker_address": b"target",
        "tag_base": 7 << 24,
        "chunk_bytes": 2 * MEBIBYTE,
        "window_chunks": 3,
        "lease_ms": 1000,
    }
    grant_from_proto(mover_pb2.LandGrant(**values), an_offer())
    with pytest.raises(InvalidInput) as caught:
        grant_from_proto(mover_pb2.LandGrant(**{**values, **changes}), an_offer())
    assert caught.value.field == field


def test_push_orders_take_the_movers_defaults() -> None:
    message = mover_pb2.PushRequest(
        ticket=ticket_to_proto(TICKET),
        manifest=manifest_to_proto(manifest()),
        reservation_id="r",
        target_mover_address="127.0.0.1:1",
        verification=1,
    )
    order = push_from_proto(message, chunk_bytes_default=4 * MEBIBYTE, window_chunks_default=6)
    assert (order.chunk_bytes, order.window_chunks, order.slot) == (4 * MEBIBYTE, 6, None)
    for field in ("reservation_id", "target_mover_address"):
        broken = mover_pb2.PushRequest.FromString(message.SerializeToString())
        setattr(broken, field, "")
        with pytest.raises(InvalidInput) as caught:
            push_from_proto(broken, chunk_bytes_default=4 * MEBIBYTE, window_chunks_default=6)
        assert caught.value.field == field


@given(st.integers(0, 2**32 - 1), st.integers(1, 2**63 - 1))
def test_slot_names_survive_the_wire(index: int, generation: int) -> None:
    ref = SlotRef("node", index, generation)
    assert ref_from_proto(ref_to_proto(ref), "slot") == ref


def test_a_slot_name_without_a_generation() -> None:
    with pytest.raises(InvalidInput) as caught:
        ref_from_proto(move_pb2.SlotRef(node_id="n"), "slot")
    assert caught.value.field == "slot.generation"
