"""Tickets: what was signed is what is read, and everything else is refused by name."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from worldline.errors import InvalidInput, TicketRefused
from worldline.ticket import (
    CLOCK_ERROR_MS,
    DURATION_MS_MAX,
    KEY_ID_BYTES,
    MovePurpose,
    SignedTicket,
    TicketClaims,
    TicketSigner,
    TicketVerifier,
    claims_from_proto,
    claims_to_proto,
    key_id_of,
    parse_claims,
    ticket_from_proto,
    ticket_to_proto,
)
from worldline.v1 import move_pb2

SIGNER = TicketSigner.from_seed(bytes(range(32)))
VERIFIER = TicketVerifier(SIGNER.key_id, SIGNER.public_key, clock_offset_ms=0.0)
CLAIMS = TicketClaims(
    ticket_id="ticket-1",
    move_id="move-1",
    session_id="session-1",
    epoch=3,
    source_node_id="node-a",
    target_node_id="node-b",
    extent_bytes_max=1_670_124_960,
    topology_hash=bytes(range(8)),
    purpose=MovePurpose.SESSION,
    issued_at_ms=1_000_000,
    valid_for_ms=30_000,
    lease_ms=10_000,
    horizon_ms=400.0,
    move_ms=212.5,
    wire_ms=182.0,
)
SIGNED = SIGNER.sign(CLAIMS)

names = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=128)

durations_ms = st.floats(0, DURATION_MS_MAX)


def all_claims() -> st.SearchStrategy[TicketClaims]:
    return st.builds(
        TicketClaims,
        ticket_id=names,
        move_id=names,
        session_id=names,
        epoch=st.integers(0, 2**63 - 1),
        source_node_id=names,
        target_node_id=names,
        extent_bytes_max=st.integers(1, 2**63 - 1),
        topology_hash=st.binary(min_size=1, max_size=64),
        purpose=st.sampled_from(MovePurpose),
        issued_at_ms=st.integers(0, 2**63 - 1),
        valid_for_ms=st.integers(1, DURATION_MS_MAX),
        lease_ms=st.integers(1, DURATION_MS_MAX),
        horizon_ms=durations_ms,
        move_ms=durations_ms,
        wire_ms=durations_ms,
        bulk=st.booleans(),
    )


@given(all_claims())
def test_claims_round_trip(claims: TicketClaims) -> None:
    wire = claims_to_proto(claims).SerializeToString()
    assert parse_claims(wire) == claims


@given(all_claims())
def test_a_signed_ticket_verifies_after_the_wire(claims: TicketClaims) -> None:
    wire = ticket_to_proto(SIGNER.sign(claims)).SerializeToString()
    ticket = ticket_from_proto(move_pb2.SignedTicket.FromString(wire))
    verifier = TicketVerifier(SIGNER.key_id, SIGNER.public_key, -float(claims.issued_at_ms))
    assert verifier.verify(ticket, now_ms=0.0) == claims


def _refusal(ticket: SignedTicket, now_ms: float, verifier: TicketVerifier = VERIFIER) -> str:
    with pytest.raises(TicketRefused) as caught:
        verifier.verify(ticket, now_ms)
    return caught.value.reason


@pytest.mark.parametrize("position", range(len(SIGNED.claims)))
def test_any_byte_of_the_claims_flipped_is_a_forgery(position: int) -> None:
    flipped = bytearray(SIGNED.claims)
    flipped[position] ^= 1
    ticket = dataclasses.replace(SIGNED, claims=bytes(flipped))
    assert _refusal(ticket, CLAIMS.issued_at_ms) == "TICKET_FORGED"


@given(st.integers(0, 63), st.integers(0, 7))
def test_any_bit_of_the_signature_flipped_is_a_forgery(position: int, bit: int) -> None:
    flipped = bytearray(SIGNED.signature)
    flipped[position] ^= 1 << bit
    ticket = dataclasses.replace(SIGNED, signature=bytes(flipped))
    assert _refusal(ticket, CLAIMS.issued_at_ms) == "TICKET_FORGED"


@given(st.binary(max_size=80))
@example(b"")
@example(SIGNED.signature + b"\0")
@example(SIGNED.signature[:-1])
def test_any_other_signature_is_a_forgery(signature: bytes) -> None:
    ticket = dataclasses.replace(SIGNED, signature=signature)
    assert _refusal(ticket, CLAIMS.issued_at_ms) == "TICKET_FORGED"


def test_bytes_appended_to_the_claims_are_a_forgery() -> None:
    # Protobuf lets a later field win: an unsigned suffix could raise the extent.
    suffix = move_pb2.TicketClaims(extent_bytes_max=2**40).SerializeToString()
    ticket = dataclasses.replace(SIGNED, claims=SIGNED.claims + suffix)
    assert _refusal(ticket, CLAIMS.issued_at_ms) == "TICKET_FORGED"


def test_a_ticket_of_another_key_is_unknown() -> None:
    foreign = TicketSigner.generate().sign(CLAIMS)
    assert _refusal(foreign, CLAIMS.issued_at_ms) == "TICKET_KEY_UNKNOWN"


def test_a_ticket_of_another_key_under_our_key_id_is_a_forgery() -> None:
    foreign = dataclasses.replace(TicketSigner.generate().sign(CLAIMS), key_id=SIGNER.key_id)
    assert _refusal(foreign, CLAIMS.issued_at_ms) == "TICKET_FORGED"


def test_signed_nonsense_is_refused_as_such() -> None:
    private = TicketSigner.from_seed(bytes(range(32)))
    nonsense = b"\xff\xff\xff"
    ticket = SignedTicket(nonsense, private._private_key.sign(nonsense), private.key_id)
    with pytest.raises(InvalidInput) as caught:
        VERIFIER.verify(ticket, CLAIMS.issued_at_ms)
    assert caught.value.field == "ticket.claims"


@pytest.mark.parametrize("offset_ms", [0.0, 5e9, -900_000.0, 0.5])
def test_validity_is_a_window_on_admissions_clock(offset_ms: float) -> None:
    verifier = TicketVerifier(SIGNER.key_id, SIGNER.public_key, offset_ms)
    issued_ms = CLAIMS.issued_at_ms + offset_ms
    assert verifier.verify(SIGNED, issued_ms) == CLAIMS
    assert verifier.verify(SIGNED, issued_ms + CLAIMS.valid_for_ms - 1) == CLAIMS
    assert _refusal(SIGNED, issued_ms + CLAIMS.valid_for_ms, verifier) == "TICKET_EXPIRED"
    assert _refusal(SIGNED, issued_ms + 1e12, verifier) == "TICKET_EXPIRED"
    assert verifier.verify(SIGNED, issued_ms - CLOCK_ERROR_MS) == CLAIMS
    early_ms = issued_ms - CLOCK_ERROR_MS - 1
    assert _refusal(SIGNED, early_ms, verifier) == "TICKET_NOT_YET_VALID"


@given(
    offset_ms=st.floats(-1e12, 1e12),
    there_ms=st.floats(0, 5e3),
    back_ms=st.floats(0, 5e3),
)
def test_the_learned_offset_is_wrong_by_at_most_half_the_round_trip(
    offset_ms: float, there_ms: float, back_ms: float
) -> None:
    asked_ms = 7_000.0
    verifier = TicketVerifier.learn(
        SIGNER.key_id,
        SIGNER.public_key,
        admission_now_ms=asked_ms + there_ms - offset_ms,
        asked_at_ms=asked_ms,
        answered_at_ms=asked_ms + there_ms + back_ms,
    )
    error_ms = abs(verifier.clock_offset_ms - offset_ms)
    assert error_ms <= (there_ms + back_ms) / 2 + 1e-3
    assert verifier.clock_error_ms >= (there_ms + back_ms) / 2 - 1e-3


def test_an_answer_from_before_the_question_is_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        TicketVerifier.learn(
            SIGNER.key_id,
            SIGNER.public_key,
            admission_now_ms=0,
            asked_at_ms=2,
            answered_at_ms=1,
        )
    assert caught.value.field == "answered_at_ms"


@pytest.mark.parametrize(
    ("key_id", "public_key", "offset_ms", "field"),
    [
        (SIGNER.key_id, SIGNER.public_key[:-1], 0.0, "public_key"),
        (bytes(KEY_ID_BYTES), SIGNER.public_key, 0.0, "key_id"),
        (SIGNER.key_id, SIGNER.public_key, float("nan"), "clock_offset_ms"),
        (SIGNER.key_id, SIGNER.public_key, float("inf"), "clock_offset_ms"),
    ],
)
def test_a_verifier_that_cannot_verify_cannot_be_built(
    key_id: bytes, public_key: bytes, offset_ms: float, field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        TicketVerifier(key_id, public_key, offset_ms)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("ticket_id", ""),
        ("move_id", "x" * 129),
        ("session_id", ""),
        ("session_id", "two words"),
        ("source_node_id", "new\nline"),
        ("target_node_id", "\x1b[31m"),
        ("epoch", -1),
        ("epoch", 2**63),
        ("extent_bytes_max", 0),
        ("extent_bytes_max", 2**63),
        ("topology_hash", b""),
        ("topology_hash", bytes(65)),
        ("purpose", 0),
        ("issued_at_ms", -1),
        ("valid_for_ms", 0),
        ("valid_for_ms", DURATION_MS_MAX + 1),
        ("lease_ms", 0),
        ("lease_ms", -1),
        ("lease_ms", float("nan")),
        ("lease_ms", float("inf")),
        ("lease_ms", 2**64 - 1),
        ("horizon_ms", -1.0),
        ("horizon_ms", float("nan")),
        ("move_ms", float("inf")),
        ("wire_ms", DURATION_MS_MAX + 1.0),
    ],
)
def test_claims_out_of_range_are_named(name: str, bad: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        dataclasses.replace(CLAIMS, **{name: bad})  # type: ignore[arg-type]
    assert caught.value.field == f"ticket.{name}"


def test_only_a_probe_goes_without_a_session() -> None:
    probe = dataclasses.replace(CLAIMS, purpose=MovePurpose.PROBE, session_id="")
    assert claims_from_proto(claims_to_proto(probe)) == probe


@pytest.mark.parametrize("name", ["claims", "signature", "key_id"])
def test_an_envelope_with_a_part_missing_is_named(name: str) -> None:
    message = ticket_to_proto(SIGNED)
    message.ClearField(name)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput) as caught:
        ticket_from_proto(message)
    assert caught.value.field == f"ticket.{name}"


def test_the_same_claims_give_the_same_ticket() -> None:
    assert SIGNER.sign(CLAIMS) == SIGNED


def test_keys() -> None:
    assert SIGNER.key_id == key_id_of(SIGNER.public_key)
    assert TicketSigner.generate().key_id != TicketSigner.generate().key_id
    with pytest.raises(InvalidInput):
        TicketSigner.from_seed(bytes(31))


def test_purposes_agree_with_the_proto() -> None:
    ours = {f"MOVE_PURPOSE_{purpose.name}": int(purpose) for purpose in MovePurpose}
    assert ours | {"MOVE_PURPOSE_UNSPECIFIED": 0} == dict(move_pb2.MovePurpose.items())
