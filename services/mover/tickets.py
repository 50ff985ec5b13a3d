"""Ticket book: which tickets this mover has redeemed, so that each works once. Pure.

A ticket allows one Reserve at its target and one Push at its source. Redeemed ids are remembered
until the ticket would be refused as expired anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from worldline.errors import InvalidInput, TicketRefused
from worldline.ticket import TicketClaims

#: Remembered this long past its end: more than the error of the learned clock offset.
_REMEMBER_S = 30.0


class Use(Enum):
    """What a ticket was redeemed for."""

    RESERVE = "reserve"
    PUSH = "push"


@dataclass(frozen=True, slots=True)
class Subject:
    """What a caller wants to do under a ticket, as far as it must match the claims."""

    session_id: str
    topology_hash: bytes
    extent_bytes: int
    epoch: int | None = None


class TicketBook:
    """Redeemed tickets."""

    def __init__(self) -> None:
        self._used: dict[tuple[str, Use], float] = {}

    def redeem(self, claims: TicketClaims, use: Use, expires_at: float, now: float) -> None:
        """Use up a verified ticket.

        Raises:
            TicketRefused: TICKET_USED.
        """
        self.check(claims, use, now)
        self._used[(claims.ticket_id, use)] = expires_at + _REMEMBER_S

    def check(self, claims: TicketClaims, use: Use, now: float) -> None:
        """Whether a ticket may still be redeemed.

        Raises:
            TicketRefused: TICKET_USED.
        """
        self._used = {key: until for key, until in self._used.items() if until > now}
        if (claims.ticket_id, use) in self._used:
            raise TicketRefused(
                f"ticket {claims.ticket_id} was already used to {use.value}",
                reason="TICKET_USED",
                field="ticket",
            )

    def __len__(self) -> int:
        return len(self._used)


def check_target(claims: TicketClaims, node_id: str, subject: Subject) -> None:
    """Whether the ticket lets this node receive that.

    Raises:
        TicketRefused: TICKET_MISMATCH, EXTENT_OVER_TICKET.
    """
    _same(claims.target_node_id, node_id, "target_node_id", "node")
    _check_subject(claims, subject)


def check_source(claims: TicketClaims, node_id: str, subject: Subject) -> None:
    """Whether the ticket lets this node send that.

    Raises:
        TicketRefused: TICKET_MISMATCH, EXTENT_OVER_TICKET.
    """
    _same(claims.source_node_id, node_id, "source_node_id", "node")
    _check_subject(claims, subject)


def check_reservation(claims: TicketClaims, reservation_id: str) -> None:
    """Whether the reservation is this ticket's: it bears the ticket's id.

    Raises:
        TicketRefused: TICKET_MISMATCH.
    """
    if reservation_id != claims.ticket_id:
        raise TicketRefused(
            f"reservation {reservation_id} is not of ticket {claims.ticket_id}",
            reason="TICKET_MISMATCH",
            field="reservation_id",
        )


def check_offered(claims: TicketClaims, subject: Subject) -> None:
    """Whether what is offered or ordered is what the ticket was given for.

    Raises:
        InvalidInput: MANIFEST_MISMATCH; `field` says in what.
    """
    pairs = (
        ("session_id", subject.session_id, claims.session_id),
        ("epoch", subject.epoch, claims.epoch),
        ("layout.topology_hash", subject.topology_hash, claims.topology_hash),
    )
    for field, actual, wanted in pairs:
        if actual is not None and actual != wanted:
            raise InvalidInput(
                f"{field} is {_shown(actual)}, the ticket is for {_shown(wanted)}",
                reason="MANIFEST_MISMATCH",
                field=field,
            )


def _check_subject(claims: TicketClaims, subject: Subject) -> None:
    _same(claims.session_id, subject.session_id, "session_id", "session")
    _same(claims.topology_hash, subject.topology_hash, "topology_hash", "topology")
    if subject.epoch is not None:
        _same(claims.epoch, subject.epoch, "epoch", "epoch")
    if subject.extent_bytes > claims.extent_bytes_max:
        raise TicketRefused(
            f"{subject.extent_bytes} bytes, the ticket allows {claims.extent_bytes_max}",
            reason="EXTENT_OVER_TICKET",
            field="ticket.extent_bytes_max",
        )


def _same(claimed: object, actual: object, name: str, noun: str) -> None:
    if claimed != actual:
        raise TicketRefused(
            f"the ticket is for {noun} {_shown(claimed)}, not {_shown(actual)}",
            reason="TICKET_MISMATCH",
            field=f"ticket.{name}",
        )


def _shown(value: object) -> str:
    return value.hex()[:16] if isinstance(value, bytes) else str(value)
