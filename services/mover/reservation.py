"""Reservation: a ticket redeemed for a SHADOW slot, on its way to LIVE. Pure.

RESERVED waits for the wire until the ticket runs out; GRANTED holds the wire for the ticket's
lease, which starts at the grant; LANDED and VERIFIED are staged and held for a while; PROMOTED is
final and is no longer reaped. Whatever misses its deadline is aborted, and what is aborted can
never be promoted: a completion that comes late finds nothing to complete.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum

from services.mover.slots import SlotRef
from worldline.errors import (
    Conflict,
    DeadlineExceeded,
    Fenced,
    InvalidInput,
    InvariantBroken,
    NotFound,
    TicketRefused,
)
from worldline.state.manifest import Manifest
from worldline.ticket import MovePurpose, TicketClaims

#: How many ended reservations are remembered, to say why rather than "unknown".
_ENDED_MAX = 256


class ReservationState(Enum):
    """Where a reservation stands."""

    RESERVED = "reserved"
    GRANTED = "granted"
    LANDED = "landed"
    VERIFIED = "verified"
    PROMOTED = "promoted"


TRANSITIONS: frozenset[tuple[ReservationState, ReservationState]] = frozenset(
    {
        (ReservationState.RESERVED, ReservationState.GRANTED),
        (ReservationState.GRANTED, ReservationState.LANDED),
        (ReservationState.LANDED, ReservationState.VERIFIED),
        # A later read-back that differs takes the earlier verdict back.
        (ReservationState.VERIFIED, ReservationState.LANDED),
        (ReservationState.VERIFIED, ReservationState.PROMOTED),
    }
)


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
    #: The frozen manifest, known from the grant on.
    manifest: Manifest | None = None
    #: Whether chunks were digested as they landed; without, it can never be promoted.
    verification_on: bool = False


class Reservations:
    """The reservations of one node."""

    def __init__(self, staged_hold_s: float) -> None:
        self._staged_hold_s = staged_hold_s
        self._living: dict[str, Reservation] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()

    def add(
        self,
        reservation_id: str,
        claims: TicketClaims,
        slot: SlotRef,
        extent_bytes: int,
        grant_by: float,
    ) -> Reservation:
        """A new reservation; the wire must be granted before `grant_by`."""
        if reservation_id in self._living:
            raise InvariantBroken(f"reservation {reservation_id} exists")
        reservation = Reservation(
            reservation_id, claims, slot, extent_bytes, ReservationState.RESERVED, grant_by
        )
        self._living[reservation_id] = reservation
        return reservation

    def get(self, reservation_id: str) -> Reservation:
        """The living reservation of that id.

        Raises:
            Conflict: it has ended (RESERVATION_ENDED), the message says how.
            NotFound: there was none.
        """
        reservation = self._living.get(reservation_id)
        if reservation is not None:
            return reservation
        if reservation_id in self._ended:
            raise Conflict(
                f"reservation {reservation_id} has ended: {self._ended[reservation_id]}",
                reason="RESERVATION_ENDED",
                field="reservation_id",
            )
        raise NotFound(
            f"no reservation {reservation_id}", reason="RESERVATION_UNKNOWN", field="reservation_id"
        )

    def grant(
        self,
        reservation_id: str,
        claims: TicketClaims,
        manifest: Manifest,
        *,
        verification_on: bool,
        now: float,
    ) -> Reservation:
        """Give the wire to the source. The lease starts here.

        Raises:
            NotFound, Conflict: as `get`.
            TicketRefused: another ticket's reservation (TICKET_MISMATCH), a second grant
                (TICKET_USED), too late (TICKET_EXPIRED), bytes beyond what was reserved
                (EXTENT_OVER_RESERVATION).
            InvalidInput: verification off for a session's move.
        """
        reservation = self.get(reservation_id)
        if claims != reservation.claims:
            raise TicketRefused(
                f"reservation {reservation_id} is not of ticket {claims.ticket_id}",
                reason="TICKET_MISMATCH",
                field="reservation_id",
            )
        if reservation.state is not ReservationState.RESERVED:
            raise TicketRefused(
                f"ticket {claims.ticket_id} has already been granted the wire",
                reason="TICKET_USED",
                field="ticket",
            )
        if now >= reservation.deadline:
            raise TicketRefused(
                f"ticket {claims.ticket_id} ran out before the wire was granted",
                reason="TICKET_EXPIRED",
                field="ticket.valid_for_ms",
            )
        if manifest.layout.extent_bytes > reservation.extent_bytes:
            raise TicketRefused(
                f"{manifest.layout.extent_bytes} bytes offered, "
                f"{reservation.extent_bytes} reserved",
                reason="EXTENT_OVER_RESERVATION",
                field="manifest.layout.extent_bytes",
            )
        self._change(reservation, ReservationState.GRANTED)
        reservation.manifest = manifest
        reservation.verification_on = verification_on
        reservation.deadline = now + claims.lease_ms / 1e3
        return reservation

    def landed(self, reservation_id: str, now: float) -> Reservation:
        """Every byte is in the slot and the two ends' digests agree.

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
        reservation.deadline = now + self._staged_hold_s
        return reservation

    def verifiable(self, reservation_id: str, manifest: Manifest) -> Reservation:
        """The reservation, if it holds what a session may continue from.

        Raises:
            NotFound, Conflict: as `get`; Conflict NOT_STAGED before everything has landed,
                NOT_PROMOTABLE for probes and unverified transfers.
            InvalidInput: another session's manifest, or another state's (MANIFEST_MISMATCH).
        """
        reservation = self.get(reservation_id)
        if reservation.state not in (ReservationState.LANDED, ReservationState.VERIFIED):
            raise Conflict(
                f"reservation {reservation_id} is {reservation.state.value}: nothing to verify",
                reason="NOT_STAGED",
            )
        self._check_promotable(reservation)
        offered = reservation.manifest
        if offered is None:
            raise InvariantBroken(f"reservation {reservation_id} landed without a manifest")
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
        """A read-back ended: equal or not.

        Raises:
            NotFound, Conflict: as `get`: it was aborted meanwhile.
        """
        reservation = self.get(reservation_id)
        wanted = ReservationState.VERIFIED if equal else ReservationState.LANDED
        if reservation.state is not wanted:
            self._change(reservation, wanted)

    def promote(self, reservation_id: str, slot: SlotRef) -> bool:
        """The staged state becomes the session's. False when it already was (a repeated call).

        Raises:
            NotFound, Conflict: as `get`; NOT_VERIFIED before an equal read-back, NOT_PROMOTABLE
                for probes and unverified transfers.
            Fenced: the slot is not the one that was verified.
        """
        reservation = self.get(reservation_id)
        if slot != reservation.slot:
            raise Fenced(
                f"reservation {reservation_id} holds slot {reservation.slot.slot_index} "
                f"generation {reservation.slot.generation}, not {slot.slot_index} generation "
                f"{slot.generation}",
                reason="SLOT_GENERATION_STALE",
                field="slot",
            )
        if reservation.state is ReservationState.PROMOTED:
            return False
        self._check_promotable(reservation)
        if reservation.state is not ReservationState.VERIFIED:
            raise Conflict(
                f"reservation {reservation_id} is {reservation.state.value}: only what was read "
                "back and found equal is promoted",
                reason="NOT_VERIFIED",
            )
        self._change(reservation, ReservationState.PROMOTED)
        return True

    def end(self, reservation_id: str, why: str) -> Reservation | None:
        """Forget a reservation, remembering why. None when it had ended before."""
        reservation = self._living.pop(reservation_id, None)
        if reservation is not None:
            self._ended[reservation_id] = why
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
