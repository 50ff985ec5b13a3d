"""Messages of the wire: parsed once, refused with the field named."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.mover.offer import (
    Offer,
    Shape,
    frozen_from_proto,
    grant_from_proto,
    offer_from_proto,
    offer_to_proto,
    order_from_proto,
)
from services.mover.slots import SlotRef, ref_from_proto, ref_to_proto
from services.mover.transfer import Verification
from tests.unit.mover.cluster import MEBIBYTE
from tests.unit.mover.test_reservation import LAYOUT
from worldline.errors import InvalidInput, VersionSkew, WorldlineError
from worldline.rpc.channel import PROTOCOL_VERSION
from worldline.state.codec import layout_to_proto, scalars_to_proto
from worldline.ticket import SignedTicket, ticket_to_proto
from worldline.v1 import move_pb2, mover_pb2

TICKET = SignedTicket(b"claims", b"signature", b"key")


def an_offer(**changes: Any) -> Offer:
    values: dict[str, Any] = {
        "ticket": TICKET,
        "reservation_id": "r",
        "session_id": "s",
        "epoch": 3,
        "layout": LAYOUT,
        "shape": Shape(Verification.PIPELINED, 2 * MEBIBYTE, 4),
        "worker_address": b"address",
        "device": "cpu",
    }
    return Offer(**{**values, **changes})


@given(
    chunk=st.integers(1, 256),
    window=st.integers(1, 64),
    verification=st.sampled_from(Verification),
    address=st.binary(min_size=1, max_size=300),
    promote=st.booleans(),
)
def test_an_offer_survives_the_wire(
    chunk: int, window: int, verification: Verification, address: bytes, promote: bool
) -> None:
    offer = an_offer(
        shape=Shape(verification, chunk * MEBIBYTE, window), worker_address=address, promote=promote
    )
    sent = offer_to_proto(offer).SerializeToString()
    assert offer_from_proto(mover_pb2.LandOffer.FromString(sent)) == offer


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reservation_id", ""),
        ("session_id", ""),
        ("device", ""),
        ("algorithm", ""),
        ("algorithm", "crc32c"),
        ("granule_bytes", 4096),
        ("verification", 0),
        ("verification", 9),
        ("chunk_bytes", 0),
        ("chunk_bytes", MEBIBYTE + 1),
        ("chunk_bytes", 512 * MEBIBYTE),
        ("window_chunks", 0),
        ("window_chunks", 65),
        ("worker_address", b""),
        ("worker_address", b"x" * 65_537),
        ("waited_ms", -1.0),
        ("waited_ms", math.nan),
        ("waited_ms", math.inf),
        ("waited_ms", 86_400_001.0),
    ],
)
def test_a_malformed_offer_names_the_field(field: str, value: Any) -> None:
    message = offer_to_proto(an_offer())
    setattr(message, field, value)
    with pytest.raises(InvalidInput) as caught:
        offer_from_proto(message)
    assert caught.value.field == field


@pytest.mark.parametrize("field", ["ticket", "layout"])
def test_an_offer_without_a_part(field: str) -> None:
    message = offer_to_proto(an_offer())
    message.ClearField(field)
    with pytest.raises((InvalidInput, VersionSkew)) as caught:
        offer_from_proto(message)
    assert caught.value.field is not None
    assert caught.value.field.startswith(field)


def test_another_version_is_refused_whatever_else_it_says() -> None:
    with pytest.raises(VersionSkew):
        offer_from_proto(mover_pb2.LandOffer(protocol_version=PROTOCOL_VERSION + 1))


@given(st.binary(max_size=200))
def test_arbitrary_offers_parse_or_are_refused(data: bytes) -> None:
    try:
        message = mover_pb2.LandOffer.FromString(data)
    except Exception:
        return
    message.protocol_version = PROTOCOL_VERSION
    try:
        offer_from_proto(message)
    except WorldlineError as error:
        assert error.reason in {"INVALID_INPUT", "VERSION_SKEW"}  # noqa: PT017


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"chunk_bytes": 3 * MEBIBYTE}, "grant.chunk_bytes"),
        ({"chunk_bytes": 0}, "grant.chunk_bytes"),
        ({"chunk_bytes": MEBIBYTE + 1}, "chunk_bytes"),
        ({"tag_base": 1}, "grant.tag_base"),
        ({"window_chunks": 5}, "grant.window_chunks"),
        ({"window_chunks": 0}, "grant.window_chunks"),
        ({"lease_ms": 0}, "grant.lease_ms"),
        ({"lease_ms": 86_400_001}, "grant.lease_ms"),
        ({"lease_ms": 2**64 - 1}, "grant.lease_ms"),
        ({"worker_address": b""}, "worker_address"),
        ({"device": ""}, "grant.device"),
    ],
)
def test_a_grant_must_fit_the_offer(changes: dict[str, Any], field: str) -> None:
    values: dict[str, Any] = {
        "worker_address": b"target",
        "tag_base": 7 << 24,
        "chunk_bytes": 2 * MEBIBYTE,
        "window_chunks": 3,
        "lease_ms": 1000,
        "device": "cpu",
    }
    smaller = values | {"chunk_bytes": MEBIBYTE, "window_chunks": 1}
    shape = grant_from_proto(mover_pb2.LandGrant(**smaller), an_offer()).shape
    assert (shape.chunk_bytes, shape.window_chunks) == (MEBIBYTE, 1)
    with pytest.raises(InvalidInput) as caught:
        grant_from_proto(mover_pb2.LandGrant(**{**values, **changes}), an_offer())
    assert caught.value.field == field


def test_push_orders_leave_choices_to_the_mover() -> None:
    message = mover_pb2.PushOrder(
        ticket=ticket_to_proto(TICKET),
        session_id="s",
        epoch=3,
        layout=layout_to_proto(LAYOUT),
        reservation_id="r",
        target_mover_address="127.0.0.1:1",
    )
    order = order_from_proto(message)
    assert (order.chunk_bytes, order.window_chunks, order.verification) == (0, 0, None)
    assert order.slot is None
    for field in ("reservation_id", "target_mover_address", "session_id"):
        broken = mover_pb2.PushOrder.FromString(message.SerializeToString())
        setattr(broken, field, "")
        with pytest.raises(InvalidInput) as caught:
            order_from_proto(broken)
        assert caught.value.field == field
    broken = mover_pb2.PushOrder.FromString(message.SerializeToString())
    broken.verification = 9  # type: ignore[assignment]
    with pytest.raises(InvalidInput) as caught:
        order_from_proto(broken)
    assert caught.value.field == "verification"


def test_a_go_brings_exactly_the_scalars_of_the_layout() -> None:
    later = LAYOUT.with_scalars({"step": 77})
    go = mover_pb2.PushGo(block_index=9, scalars=scalars_to_proto(later))
    frozen = frozen_from_proto(go, LAYOUT)
    assert (frozen.block_index, frozen.layout.scalar_values()) == (9, {"step": 77})
    for scalars in ([], [*go.scalars, *go.scalars]):
        with pytest.raises(InvalidInput) as caught:
            frozen_from_proto(mover_pb2.PushGo(block_index=9, scalars=scalars), LAYOUT)
        assert caught.value.field == "scalars"


@given(st.integers(0, 2**32 - 1), st.integers(1, 2**63 - 1))
def test_slot_names_survive_the_wire(index: int, generation: int) -> None:
    ref = SlotRef("node", index, generation)
    assert ref_from_proto(ref_to_proto(ref), "slot") == ref


def test_a_slot_name_without_a_generation() -> None:
    with pytest.raises(InvalidInput) as caught:
        ref_from_proto(move_pb2.SlotRef(node_id="n"), "slot")
    assert caught.value.field == "slot.generation"
