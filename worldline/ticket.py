"""Ticket: admission's signed, expiring permission for one move.

Signed with Ed25519 (RFC 8032) as bytes, so that every verifier checks exactly what was signed
whatever its protobuf library would re-serialize. Times are on admission's own monotonic clock:
a verifier learns the offset between the two clocks together with the key (`TicketVerifier.learn`),
and no wall clock takes part.

What a signature cannot say is the mover's to enforce: that a ticket is used once (`TICKET_USED`)
and for the session, epoch, extent and target it names (`TICKET_MISMATCH`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from google.protobuf.message import DecodeError

from worldline.errors import InvalidInput, TicketRefused
from worldline.fields import enum_member, finite, identifier, non_negative, whole
from worldline.v1 import move_pb2

SEED_BYTES = 32
PUBLIC_KEY_BYTES = 32
KEY_ID_BYTES = 16
#: Longest topology hash in use; a ticket without one would fit any layout.
TOPOLOGY_HASH_BYTES_MAX = 64
#: One day, as the longest horizon: a permission that outlives it is a leak.
DURATION_MS_MAX = 86_400_000
#: How far the two clocks may seem apart before a ticket counts as issued in the future. Above
#: half a slow round trip, which is the most that the learned offset can be wrong by.
CLOCK_ERROR_MS = 250.0
#: Verified tickets that a process remembers.
_REMEMBERED_COUNT = 16


class MovePurpose(IntEnum):
    """What a move is for; numbers as in move.proto."""

    SESSION = 1
    PROBE = 2


@dataclass(frozen=True, slots=True)
class TicketClaims:
    """What a ticket permits.

    At most `extent_bytes_max` bytes of the layout with `topology_hash`, from `source_node_id` to
    `target_node_id`, for session `session_id` at `epoch`. Both ends are ready and ask for the wire
    within `valid_for_ms` after `issued_at_ms`; it is granted while the move, charged `move_ms` from
    then on, still commits within `horizon_ms` after asking (0: no deadline); once granted it is
    held for `wire_ms` as expected and `lease_ms` at most. `bulk` waits for whatever is not. A
    probe may go without a session.

    Raises:
        InvalidInput: a claim out of range; `field` is `ticket.<name>`.
    """

    ticket_id: str
    move_id: str
    session_id: str
    epoch: int
    source_node_id: str
    target_node_id: str
    extent_bytes_max: int
    topology_hash: bytes
    purpose: MovePurpose
    issued_at_ms: int
    valid_for_ms: int
    lease_ms: int
    horizon_ms: float = 0.0
    move_ms: float = 0.0
    wire_ms: float = 0.0
    bulk: bool = False

    def __post_init__(self) -> None:
        for name in ("ticket_id", "move_id", "source_node_id", "target_node_id"):
            identifier(getattr(self, name), f"ticket.{name}")
        enum_member(MovePurpose, self.purpose, "ticket.purpose")
        if self.session_id or self.purpose is not MovePurpose.PROBE:
            identifier(self.session_id, "ticket.session_id")
        whole(self.epoch, "ticket.epoch")
        whole(self.extent_bytes_max, "ticket.extent_bytes_max", at_least=1)
        if not 1 <= len(self.topology_hash) <= TOPOLOGY_HASH_BYTES_MAX:
            raise InvalidInput(
                f"ticket.topology_hash must have 1 to {TOPOLOGY_HASH_BYTES_MAX} bytes, "
                f"got {len(self.topology_hash)}",
                field="ticket.topology_hash",
            )
        whole(self.issued_at_ms, "ticket.issued_at_ms")
        whole(self.valid_for_ms, "ticket.valid_for_ms", at_least=1, at_most=DURATION_MS_MAX)
        whole(self.lease_ms, "ticket.lease_ms", at_least=1, at_most=DURATION_MS_MAX)
        for name in ("horizon_ms", "move_ms", "wire_ms"):
            non_negative(getattr(self, name), f"ticket.{name}", at_most=DURATION_MS_MAX)


@dataclass(frozen=True, slots=True)
class SignedTicket:
    """A ticket on its way: serialized claims, their signature, and the id of the signing key."""

    claims: bytes
    signature: bytes
    key_id: bytes


class TicketSigner:
    """Admission's half: signs claims with one Ed25519 key."""

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        self._private_key = private_key
        #: Raw, 32 bytes.
        self.public_key = private_key.public_key().public_bytes_raw()
        self.key_id = key_id_of(self.public_key)

    @classmethod
    def generate(cls) -> TicketSigner:
        """A fresh key from the system's randomness; its tickets die with the process."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> TicketSigner:
        """The key of a 32-byte seed, for keys that outlive a process.

        Raises:
            InvalidInput: the seed has another length.
        """
        if len(seed) != SEED_BYTES:
            raise InvalidInput(
                f"a ticket key is {SEED_BYTES} raw bytes, got {len(seed)}", field="seed"
            )
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    def sign(self, claims: TicketClaims) -> SignedTicket:
        """Serialize the claims once and sign exactly those bytes."""
        serialized = claims_to_proto(claims).SerializeToString(deterministic=True)
        return SignedTicket(
            claims=serialized,
            signature=self._private_key.sign(serialized),
            key_id=self.key_id,
        )


class TicketVerifier:
    """A mover's half: admission's public key, and the offset between the two clocks.

    `clock_offset_ms` is own monotonic time minus admission's. A verifier that meets
    `TICKET_KEY_UNKNOWN` or `TICKET_NOT_YET_VALID` may hold the key or the offset of an admission
    that has since restarted: learn again, once, then believe the answer.

    Raises:
        InvalidInput: a key of another length, a key id that is not the key's, an offset that is
            not a number.
    """

    def __init__(
        self,
        key_id: bytes,
        public_key: bytes,
        clock_offset_ms: float,
        clock_error_ms: float = CLOCK_ERROR_MS,
    ) -> None:
        if len(public_key) != PUBLIC_KEY_BYTES:
            raise InvalidInput(
                f"an Ed25519 public key has {PUBLIC_KEY_BYTES} bytes, got {len(public_key)}",
                field="public_key",
            )
        if key_id != key_id_of(public_key):
            raise InvalidInput("key_id does not belong to public_key", field="key_id")
        self._public_key = Ed25519PublicKey.from_public_bytes(public_key)
        self.key_id = key_id
        self.clock_offset_ms = finite(clock_offset_ms, "clock_offset_ms")
        self.clock_error_ms = non_negative(clock_error_ms, "clock_error_ms")
        #: A ticket is shown twice to its target: when it is redeemed, and with the source's offer.
        self._signed_claims = lru_cache(_REMEMBERED_COUNT)(self._check_signature)

    @classmethod
    def learn(
        cls,
        key_id: bytes,
        public_key: bytes,
        *,
        admission_now_ms: float,
        asked_at_ms: float,
        answered_at_ms: float,
    ) -> TicketVerifier:
        """From one GetTicketKey call: own monotonic times around it, admission's time in it.

        Admission's reading is taken to lie in the middle of the round trip, so the offset is
        wrong by at most half of it (as in RFC 5905, section 8).

        Raises:
            InvalidInput: as the class; also an answer from before the question.
        """
        round_trip_ms = non_negative(answered_at_ms - asked_at_ms, "answered_at_ms")
        middle_ms = asked_at_ms + round_trip_ms / 2
        return cls(
            key_id,
            public_key,
            clock_offset_ms=middle_ms - admission_now_ms,
            clock_error_ms=max(CLOCK_ERROR_MS, round_trip_ms / 2),
        )

    def verify(self, signed: SignedTicket, now_ms: float) -> TicketClaims:
        """The claims, if this ticket was signed by admission and is valid at `now_ms`.

        `now_ms` is the verifier's own monotonic clock.

        Raises:
            TicketRefused: TICKET_KEY_UNKNOWN, TICKET_FORGED, TICKET_NOT_YET_VALID or
                TICKET_EXPIRED.
        """
        if signed.key_id != self.key_id:
            raise TicketRefused(
                "the ticket was signed with a key this process does not know: admission "
                "restarted, or the ticket is not admission's",
                reason="TICKET_KEY_UNKNOWN",
                field="ticket.key_id",
            )
        claims = self._signed_claims(signed.claims, signed.signature)
        self._check_time(claims, now_ms)
        return claims

    def _check_signature(self, claims: bytes, signature: bytes) -> TicketClaims:
        try:
            self._public_key.verify(signature, claims)
        except InvalidSignature:
            raise TicketRefused(
                "the ticket's signature does not match its claims",
                reason="TICKET_FORGED",
                field="ticket.signature",
            ) from None
        return parse_claims(claims)

    def _check_time(self, claims: TicketClaims, now_ms: float) -> None:
        age_ms = now_ms - (claims.issued_at_ms + self.clock_offset_ms)
        if age_ms < -self.clock_error_ms:
            raise TicketRefused(
                f"ticket {claims.ticket_id} was issued {-age_ms:.0f} ms in the future: the "
                "offset to admission's clock is stale",
                reason="TICKET_NOT_YET_VALID",
                field="ticket.issued_at_ms",
            )
        if age_ms >= claims.valid_for_ms:
            raise TicketRefused(
                f"ticket {claims.ticket_id} expired: it is {age_ms:.0f} ms old and was valid "
                f"for {claims.valid_for_ms} ms; ask admission again",
                reason="TICKET_EXPIRED",
                field="ticket.valid_for_ms",
            )


def key_id_of(public_key: bytes) -> bytes:
    """The name of a key: the first 16 bytes of its SHA-256."""
    return hashlib.sha256(public_key).digest()[:KEY_ID_BYTES]


def parse_claims(serialized: bytes) -> TicketClaims:
    """Claims from their bytes, without looking at any signature.

    Raises:
        InvalidInput: not a TicketClaims message, or one that `TicketClaims` refuses.
    """
    try:
        message = move_pb2.TicketClaims.FromString(serialized)
    except DecodeError:
        raise InvalidInput(
            "ticket.claims is not a TicketClaims message", field="ticket.claims"
        ) from None
    return claims_from_proto(message)


def claims_from_proto(message: move_pb2.TicketClaims) -> TicketClaims:
    """Parse the claims.

    Raises:
        InvalidInput: as `TicketClaims`.
    """
    return TicketClaims(
        ticket_id=message.ticket_id,
        move_id=message.move_id,
        session_id=message.session_id,
        epoch=message.epoch,
        source_node_id=message.source_node_id,
        target_node_id=message.target_node_id,
        extent_bytes_max=message.extent_bytes_max,
        topology_hash=message.topology_hash,
        purpose=enum_member(MovePurpose, message.purpose, "ticket.purpose"),
        issued_at_ms=message.issued_at_ms,
        valid_for_ms=message.valid_for_ms,
        lease_ms=message.lease_ms,
        horizon_ms=message.horizon_ms,
        move_ms=message.move_ms,
        wire_ms=message.wire_ms,
        bulk=message.bulk,
    )


def claims_to_proto(claims: TicketClaims) -> move_pb2.TicketClaims:
    """The wire form; `claims_from_proto` gives back equal claims."""
    return move_pb2.TicketClaims(
        ticket_id=claims.ticket_id,
        move_id=claims.move_id,
        session_id=claims.session_id,
        epoch=claims.epoch,
        source_node_id=claims.source_node_id,
        target_node_id=claims.target_node_id,
        extent_bytes_max=claims.extent_bytes_max,
        topology_hash=claims.topology_hash,
        purpose=move_pb2.MovePurpose.Name(claims.purpose),
        issued_at_ms=claims.issued_at_ms,
        valid_for_ms=claims.valid_for_ms,
        lease_ms=claims.lease_ms,
        horizon_ms=claims.horizon_ms,
        move_ms=claims.move_ms,
        wire_ms=claims.wire_ms,
        bulk=claims.bulk,
    )


def ticket_from_proto(message: move_pb2.SignedTicket) -> SignedTicket:
    """Parse a ticket's envelope; only `TicketVerifier.verify` says what it is worth.

    Raises:
        InvalidInput: a part is absent.
    """
    for name in ("claims", "signature", "key_id"):
        if not getattr(message, name):
            raise InvalidInput(f"ticket.{name} must not be empty", field=f"ticket.{name}")
    return SignedTicket(claims=message.claims, signature=message.signature, key_id=message.key_id)


def ticket_to_proto(ticket: SignedTicket) -> move_pb2.SignedTicket:
    """The wire form; `ticket_from_proto` gives back an equal ticket."""
    return move_pb2.SignedTicket(
        claims=ticket.claims, signature=ticket.signature, key_id=ticket.key_id
    )
