"""Ticket gate: verifies tickets with the key that admission publishes, learned when needed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from worldline.errors import TicketRefused
from worldline.rpc.channel import ChannelPool, call
from worldline.ticket import SignedTicket, TicketClaims, TicketVerifier
from worldline.v1 import admission_pb2, admission_pb2_grpc

_ASK_S = 3.0
#: Refusals that an admission which has since restarted explains: learn again, once.
_STALE = frozenset({"TICKET_KEY_UNKNOWN", "TICKET_NOT_YET_VALID"})
#: An expired ticket is explained so only by an offset that is older than this: clocks drift by
#: some 50 ppm, and an admission that keeps its key may come back under another clock. Younger
#: ones are believed, so that old tickets do not make a call each.
_BELIEVED_S = 10.0


@dataclass(frozen=True, slots=True)
class Admitted:
    """A verified ticket, and until when (loop time, seconds) its wire may be asked for."""

    claims: TicketClaims
    grant_by: float


class TicketGate:
    """Holds the current verifier."""

    def __init__(self, admission_address: str, channels: ChannelPool) -> None:
        self._address = admission_address
        self._channels = channels
        self._verifier: TicketVerifier | None = None
        self._learned_at = 0.0
        self._learning = asyncio.Lock()

    async def verify(self, signed: SignedTicket, asked_ago_s: float = 0.0) -> Admitted:
        """The ticket's claims. Its wire was asked for so long ago: it had to be valid then.

        Raises:
            TicketRefused: forged, expired, or of an unknown key.
            Unavailable, DeadlineExceeded: admission's key is needed and cannot be had.
        """
        verifier = self._verifier or await self._learn(None)
        try:
            return self._check(verifier, signed, asked_ago_s)
        except TicketRefused as error:
            if error.reason not in _STALE and not self._outdated(error):
                raise
        return self._check(await self._learn(verifier), signed, asked_ago_s)

    def _outdated(self, error: TicketRefused) -> bool:
        age_s = asyncio.get_running_loop().time() - self._learned_at
        return error.reason == "TICKET_EXPIRED" and age_s >= _BELIEVED_S

    def _check(
        self, verifier: TicketVerifier, signed: SignedTicket, asked_ago_s: float
    ) -> Admitted:
        asked = asyncio.get_running_loop().time() - asked_ago_s
        claims = verifier.verify(signed, asked * 1e3)
        issued_at = (claims.issued_at_ms + verifier.clock_offset_ms) / 1e3
        return Admitted(claims=claims, grant_by=issued_at + claims.valid_for_ms / 1e3)

    async def _learn(self, stale: TicketVerifier | None) -> TicketVerifier:
        loop = asyncio.get_running_loop()
        async with self._learning:
            if self._verifier is not None and self._verifier is not stale:
                return self._verifier  # another caller has just learned it
            stub = admission_pb2_grpc.AdmissionServiceStub(self._channels.get(self._address))
            asked_at = loop.time()
            answer = await call(
                stub.GetTicketKey, admission_pb2.GetTicketKeyRequest(), timeout_s=_ASK_S
            )
            self._learned_at = asked_at
            self._verifier = TicketVerifier.learn(
                answer.key_id,
                answer.public_key,
                admission_now_ms=answer.now_ms,
                asked_at_ms=asked_at * 1e3,
                answered_at_ms=loop.time() * 1e3,
            )
            return self._verifier
