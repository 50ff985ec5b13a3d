"""Reservation: a ticket redeemed for a SHADOW slot, on its way to LIVE. Pure.

It bears its ticket's id, so that the source's offer may name it before it is there. PREPARING has
a slot whose memory is being made ready; RESERVED waits for the source's offer, which may have to
wait for its turn there; WAITING has an offer and waits for the wire. GRANTED has the wire: its
lease bounds the time until the go, and again the time from then on, when it is LANDING. LANDED and
VERIFIED are staged and held for a while; PROMOTED is final and is no longer reaped. Whatever misses
its deadline is aborted, and what is aborted can never be promoted: a completion that comes late
finds nothing to complete.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from services.mover.givingway import gave_way
from services.mover.slots import GENERATION_STALE, SlotRef
from worldline.errors import (
    Conflict,
    DeadlineExceeded,
    Fenced,
    InvalidInput,
    InvariantBroken,
    NotFound,
    TicketRefused,
)
from worldline.state.layout import Layout
from worldline.state.manifest import Manifest
from worldline.state.segment_digests import SegmentDigests
from worldline.ticket import MovePurpose, TicketClaims

#: How many ended reservations are remembered, to say why rather than "unknown".
_ENDED_MAX = 256


class ReservationState(Enum):
    """Where a reservation stands."""

    PREPARING = "preparing"
    RESERVED = "reserved"
    WAITING = "waiting"
    GRANTED = "granted"
    LANDING = "landing"
    LANDED = "landed"
    VERIFIED = "verified"
    PROMOTED = "promoted"


TRANSITIONS: frozenset[tuple[ReservationState, ReservationState]] = frozenset(
    {
        (ReservationState.PREPARING, ReservationState.RESERVED),
        (ReservationState.RESERVED, ReservationState.WAITING),
        (ReservationState.WAITING, ReservationState.GRANTED),
        (ReservationState.GRANTED, ReservationState.LANDING),
        (ReservationState.LANDING, ReservationState.LANDED),
        (ReservationState.LANDED, ReservationState.VERIFIED),
        # A later read-back that differs takes the earlier verdict back.
        (ReservationState.VERIFIED, ReservationState.LANDED),
        (ReservationState.VERIFIED, ReservationState.PROMOTED),
    }
)


#: States in which everything has landed.
_STAGED = frozenset({ReservationState.LANDED, ReservationState.VERIFIED, ReservationState.PROMOTED})


@dataclass(frozen=True, slots=True)
class Staged:
    """Which state it is that lands: whose, of which epoch and block, in which layout."""

    session_id: str
    epoch: int
    block_index: int
    layout: Layout


@dataclass(slots=True)
class Reservation:
    """One reservation."""

    reservation_id: str
    claims: TicketClaims
    slot: SlotRef
    extent_bytes: int
    state: ReservationState
    #: Reaped at this time (monotonic seconds) unless it has moved on.
    deadline: float
    #: Known from the go on.
    staged: Staged | None = None
    #: Whether what lands is digested; without, it can never be promoted.
    verification_on: bool = False
    #: What the source said that it sent; known once everything has landed.
    sealed: SegmentDigests | None = None


class _End(NamedTuple):
    """How a reservation ended; `gave_way`: a probe's, because somebody needed its slot."""

    why: str
    gave_way: bool


class Reservations:
    """The reservations of one node."""

    def __init__(self, staged_hold_s: float) -> None:
        self._staged_hold_s = staged_hold_s
        self._living: dict[str, Reservation] = {}
        self._ended: OrderedDict[str, _End] = OrderedDict()

    def in_force(self) -> int:
        """How many are under way; from any thread."""
        living = list(self._living.values())
        return sum(one.state is not ReservationState.PROMOTED for one in living)

    def add(
        self, claims: TicketClaims, slot: SlotRef, extent_bytes: int, offer_by: float
    ) -> Reservation:
        """A new reservation; its source must offer before `offer_by`."""
        reservation_id = claims.ticket_id
        if reservation_id in self._living:
            raise InvariantBroken(f"reservation {reservation_id} exists")
        reservation = Reservation(
            reservation_id, claims, slot, extent_bytes, ReservationState.PREPARING, offer_by
        )
        self._living[reservation_id] = reservation
        return reservation

    def prepared(self, reservation_id: str) -> None:
        """Its slot's memory is ready to be written.

        Raises:
            NotFound, Conflict: as `get`: it was given up meanwhile.
        """
        self._change(self.get(reservation_id), ReservationState.RESERVED)

    def decided(self, reservation_id: str) -> bool:
        """Whether it is ready or has ended: nothing is to be waited for."""
        reservation = self._living.get(reservation_id)
        if reservation is None:
            return reservation_id in self._ended
        return reservation.state is not ReservationState.PREPARING

    def staged(self, reservation_id: str) -> bool:
        """Whether everything has landed.

        Raises:
            NotFound, Conflict: as `get`.
        """
        return self.get(reservation_id).state in _STAGED

    def get(self, reservation_id: str) -> Reservation:
        """The living reservation of that id.

        Raises:
            Conflict: it has ended (RESERVATION_ENDED), the message says how.
            CapacityExhausted: it was a probe's, which gave way (PROBE_GAVE_WAY).
            NotFound: there was none.
        """
        reservation = self._living.get(reservation_id)
        if reservation is not None:
            return reservation
        ended = self._ended.get(reservation_id)
        if ended is not None:
            if ended.gave_way:
                raise gave_way(reservation_id)
            raise Conflict(
                f"reservation {reservation_id} has ended: {ended.why}",
                reason="RESERVATION_ENDED",
                field="reservation_id",
            )
        raise NotFound(
            f"no reservation {reservation_id}", reason="RESERVATION_UNKNOWN", field="reservation_id"
        )

    def offered(
        self,
        reservation_id: str,
        claims: TicketClaims,
        extent_bytes: int,
        *,
        verification_on: bool,
        until: float,
        now: float,
    ) -> Reservation:
        """The source is ready, and waits for the wire `until` then at the latest.

        Raises:
            NotFound, Conflict: as `get`.
            TicketRefused: another ticket's reservation (TICKET_MISMATCH), a second offer
                (TICKET_USED), too late (TICKET_EXPIRED), bytes beyond what was reserved
                (EXTENT_OVER_RESERVATION).
        """
        reservation = self.get(reservation_id)
        if claims != reservation.claims:
            raise TicketRefused(
                f"reservation {reservation_id} is not of ticket {claims.ticket_id}",
                reason="TICKET_MISMATCH",
                field="reservation_id",
            )
        if reservation.state is ReservationState.PREPARING:
            raise TicketRefused(
                f"ticket {claims.ticket_id} ran out before its slot was ready",
                reason="TICKET_EXPIRED",
                field="ticket.valid_for_ms",
            )
        if reservation.state is not ReservationState.RESERVED:
            raise TicketRefused(
                f"ticket {claims.ticket_id} has already been offered under",
                reason="TICKET_USED",
                field="ticket",
            )
        if now >= reservation.deadline:
            raise TicketRefused(
                f"ticket {claims.ticket_id} ran out before its source offered",
                reason="TICKET_EXPIRED",
                field="ticket.valid_for_ms",
            )
        if extent_bytes > reservation.extent_bytes:
            raise TicketRefused(
                f"{extent_bytes} bytes offered, {reservation.extent_bytes} reserved",
                reason="EXTENT_OVER_RESERVATION",
                field="layout.extent_bytes",
            )
        self._change(reservation, ReservationState.WAITING)
        reservation.verification_on = verification_on
        reservation.deadline = until
        return reservation

    def granted(self, reservation_id: str, now: float) -> Reservation:
        """The wire is the source's. Its lease starts here, and must see the go.

        Raises:
            NotFound, Conflict: as `get`: it was aborted meanwhile.
        """
        reservation = self.get(reservation_id)
        self._change(reservation, ReservationState.GRANTED)
        reservation.deadline = now + reservation.claims.lease_ms / 1e3
        return reservation

    def go(self, reservation_id: str, staged: Staged, now: float) -> Reservation:
        """The source is frozen and sends. The lease starts again here.

        Raises:
            NotFound, Conflict: as `get`: it was aborted meanwhile; Conflict NOT_GRANTED: the source
                did not wait for the wire.
            DeadlineExceeded: the lease was over before (LEASE_EXPIRED).
        """
        reservation = self.get(reservation_id)
        if reservation.state is ReservationState.WAITING:
            raise Conflict(
                f"reservation {reservation_id} has not been granted the wire",
                reason="NOT_GRANTED",
                field="go",
            )
        if now >= reservation.deadline:
            raise DeadlineExceeded(
                f"no go within the lease of {reservation.claims.lease_ms} ms",
                reason="LEASE_EXPIRED",
                field="ticket.lease_ms",
            )
        self._change(reservation, ReservationState.LANDING)
        reservation.staged = staged
        reservation.deadline = now + reservation.claims.lease_ms / 1e3
        return reservation

    def landed(
        self, reservation_id: str, now: float, sealed: SegmentDigests | None = None
    ) -> Reservation:
        """Every byte is in the slot; where verification is on, the two ends' digests agree.

        Raises:
            NotFound, Conflict: as `get`: it was aborted meanwhile.
            DeadlineExceeded: the lease is over (LEASE_EXPIRED).
        """
        reservation = self.get(reservation_id)
        if now >= reservation.deadline:
            raise DeadlineExceeded(
                f"the transfer took longer than its lease of {reservation.claims.lease_ms} ms",
                reason="LEASE_EXPIRED",
                field="ticket.lease_ms",
            )
        self._change(reservation, ReservationState.LANDED)
        reservation.sealed = sealed
        reservation.deadline = now + self._staged_hold_s
        if reservation.verification_on:
            self._change(reservation, ReservationState.VERIFIED)
        return reservation

    def verifiable(self, reservation_id: str, manifest: Manifest) -> Reservation:
        """The reservation, if it holds what a session may continue from.

        Raises:
            NotFound, Conflict: as `get`; Conflict NOT_STAGED before everything has landed,
                NOT_PROMOTABLE for probes and unverified transfers.
            InvalidInput: another session's manifest, or another state's (MANIFEST_MISMATCH).
        """
        reservation = self.get(reservation_id)
        if reservation.state not in _STAGED:
            raise Conflict(
                f"reservation {reservation_id} is {reservation.state.value}: nothing to verify",
                reason="NOT_STAGED",
            )
        self._check_promotable(reservation)
        offered = reservation.staged
        if offered is None:
            raise InvariantBroken(f"reservation {reservation_id} landed without a go")
        pairs = (
            ("session_id", manifest.session_id, offered.session_id),
            ("epoch", manifest.epoch, offered.epoch),
            ("block_index", manifest.block_index, offered.block_index),
            # Scalars are not compared here: the whole digest covers their bits, NaNs included.
            ("layout", manifest.layout.topology_hash, offered.layout.topology_hash),
        )
        for name, actual, wanted in pairs:
            if actual != wanted:
                raise InvalidInput(
                    f"manifest.{name} is not that of the bytes that landed",
                    reason="MANIFEST_MISMATCH",
                    field=f"manifest.{name}",
                )
        return reservation

    def verified(self, reservation_id: str, *, equal: bool) -> None:
        """A read-back ended: equal or not. What was promoted before stays so.

        Raises:
            NotFound, Conflict: as `get`: it was aborted meanwhile.
        """
        reservation = self.get(reservation_id)
        wanted = ReservationState.VERIFIED if equal else ReservationState.LANDED
        if reservation.state not in (wanted, ReservationState.PROMOTED):
            self._change(reservation, wanted)

    def promote(self, reservation_id: str, slot: SlotRef) -> bool:
        """The staged state becomes the session's. False when it already was (a repeated call).

        Raises:
            NotFound, Conflict: as `get`; NOT_VERIFIED before its digests were found equal,
                NOT_PROMOTABLE for probes and unverified transfers.
            Fenced: the slot is not the one that was verified.
        """
        reservation = self.get(reservation_id)
        if slot != reservation.slot:
            raise Fenced(
                f"reservation {reservation_id} holds slot {reservation.slot.slot_index} "
                f"generation {reservation.slot.generation}, not {slot.slot_index} generation "
                f"{slot.generation}",
                reason=GENERATION_STALE,
                field="slot",
            )
        if reservation.state is ReservationState.PROMOTED:
            return False
        self._check_promotable(reservation)
        if reservation.state is not ReservationState.VERIFIED:
            raise Conflict(
                f"reservation {reservation_id} is {reservation.state.value}: only what was "
                "digested in its slot and found equal is promoted",
                reason="NOT_VERIFIED",
            )
        self._change(reservation, ReservationState.PROMOTED)
        return True

    def end(self, reservation_id: str, why: str, *, gave_way: bool = False) -> Reservation | None:
        """Forget a reservation, remembering why. None when it had ended before."""
        reservation = self._living.pop(reservation_id, None)
        if reservation is not None:
            self._ended[reservation_id] = _End(why, gave_way)
            while len(self._ended) > _ENDED_MAX:
                self._ended.popitem(last=False)
        return reservation

    def of_slot(self, slot: SlotRef) -> Reservation | None:
        """The reservation that holds a slot, if one does."""
        return next((one for one in self._living.values() if one.slot == slot), None)

    def due(self, now: float) -> tuple[Reservation, ...]:
        """What the reaper must abort now, oldest deadline first."""
        late = [
            one
            for one in self._living.values()
            if one.state is not ReservationState.PROMOTED and now >= one.deadline
        ]
        return tuple(sorted(late, key=lambda one: (one.deadline, one.reservation_id)))

    def next_deadline(self) -> float | None:
        """When `due` may next have something to say."""
        return min(
            (
                one.deadline
                for one in self._living.values()
                if one.state is not ReservationState.PROMOTED
            ),
            default=None,
        )

    def ids(self) -> tuple[str, ...]:
        """Living reservations that are not yet final, sorted."""
        return tuple(
            sorted(
                one.reservation_id
                for one in self._living.values()
                if one.state is not ReservationState.PROMOTED
            )
        )

    def _check_promotable(self, reservation: Reservation) -> None:
        if reservation.claims.purpose is not MovePurpose.SESSION:
            raise Conflict("a probe can never be promoted", reason="NOT_PROMOTABLE")
        if not reservation.verification_on:
            raise Conflict(
                "a transfer with verification off can never be promoted", reason="NOT_PROMOTABLE"
            )

    def _change(self, reservation: Reservation, state: ReservationState) -> None:
        if (reservation.state, state) not in TRANSITIONS:
            raise InvariantBroken(
                f"reservation {reservation.reservation_id}: {reservation.state.value} to "
                f"{state.value} is no transition"
            )
        reservation.state = state
