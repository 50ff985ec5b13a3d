"""Ticket office: what the movers of a bench take for admission; it signs whatever is measured."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from worldline.rpc.server import GrpcServer
from worldline.state.layout import Layout
from worldline.ticket import MovePurpose, SignedTicket, TicketClaims, TicketSigner
from worldline.v1 import admission_pb2, admission_pb2_grpc

_VALID_MS = 120_000
_GRACE_S = 0.2


class TicketOffice(admission_pb2_grpc.AdmissionServiceServicer):
    """Publishes its key, and gives tickets without a deadline."""

    def __init__(self) -> None:
        self._signer = TicketSigner.generate()
        self._server = GrpcServer()
        self._numbers = itertools.count(1)
        #: host:port once it serves.
        self.address = ""

    async def start(self, host: str = "127.0.0.1") -> str:
        """Serve; returns host:port."""
        self._server.bind(f"{host}:0")
        self._server.add(
            admission_pb2_grpc.add_AdmissionServiceServicer_to_server,
            self,
            "worldline.v1.AdmissionService",
        )
        await self._server.start()
        self.address = self._server.address
        return self.address

    async def stop(self) -> None:
        """Serve no more."""
        await self._server.stop(_GRACE_S)

    async def GetTicketKey(  # noqa: N802
        self, request: admission_pb2.GetTicketKeyRequest, context: Any
    ) -> admission_pb2.GetTicketKeyResponse:
        """The public half of the key."""
        return admission_pb2.GetTicketKeyResponse(
            key_id=self._signer.key_id,
            public_key=self._signer.public_key,
            now_ms=_now_ms(),
        )

    def ticket(self, layout: Layout, session_id: str, source: str, target: str) -> SignedTicket:
        """A ticket for one push of a layout between two nodes."""
        number = next(self._numbers)
        claims = TicketClaims(
            ticket_id=f"ticket-{number}",
            move_id=f"move-{number}",
            session_id=session_id,
            epoch=1,
            source_node_id=source,
            target_node_id=target,
            extent_bytes_max=layout.extent_bytes,
            topology_hash=layout.topology_hash,
            purpose=MovePurpose.SESSION,
            issued_at_ms=_now_ms(),
            valid_for_ms=_VALID_MS,
            lease_ms=_VALID_MS,
        )
        return self._signer.sign(claims)


@asynccontextmanager
async def ticket_office(host: str) -> AsyncIterator[TicketOffice]:
    """One that serves on that host's address."""
    office = TicketOffice()
    await office.start(host)
    try:
        yield office
    finally:
        await office.stop()


def _now_ms() -> int:
    return round(time.monotonic() * 1e3)
