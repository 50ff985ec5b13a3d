"""Probe: measures a path that admission knows nothing about, with random bytes.

Two sizes, so that set-up time and rate can be told apart. A probe has its own move id and ticket,
lands in a SHADOW slot that can never be promoted, and gives everything back whatever happens.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass

from services.placement.peers import Deadlines, Peers
from services.placement.wire import figures_from_proto, figures_to_proto, slot_from_proto
from worldline.contract import Contract, contract_to_proto
from worldline.errors import InvariantBroken, WorldlineError
from worldline.rpc.channel import call, mapped_errors
from worldline.state.codec import layout_to_proto, manifest_to_proto
from worldline.state.layout import flat_layout
from worldline.state.manifest import Fingerprint, Manifest
from worldline.telemetry import span
from worldline.ticket import parse_claims
from worldline.v1 import admission_pb2, move_pb2, mover_pb2
from worldline.verdict import Verdict, verdict_from_proto

SMALL_BYTES = 1 << 20
LARGE_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class ProbeWish:
    """The path to measure, for whose sake, and the most bytes that both ends can hold."""

    source_node_id: str
    target_node_id: str
    contract: Contract
    fingerprint: Fingerprint
    slot_bytes: int
    client_id: str


def probe_sizes(slot_bytes: int) -> tuple[int, ...]:
    """Small, then large; one size where the slot holds no more. Pure.

    1 MiB is dominated by set-up, 64 MiB by the rate on every lane in use here.
    """
    sizes = {min(SMALL_BYTES, slot_bytes), min(LARGE_BYTES_MAX, slot_bytes)}
    return tuple(sorted(sizes))


class Probe:
    """Measures paths. One instance serves all moves: it holds nothing between calls."""

    def __init__(self, peers: Peers, deadlines: Deadlines) -> None:
        self._peers = peers
        self._deadlines = deadlines

    async def measure(self, wish: ProbeWish) -> Verdict | None:
        """Push each size once. None when measured, admission's verdict when it says no.

        Raises:
            WorldlineError: a call failed; what the probe held was given back.
        """
        for size_bytes in probe_sizes(wish.slot_bytes):
            with span("probe.push", size_bytes=size_bytes) as active:
                verdict = await self._push_once(wish, size_bytes)
                if verdict is not None:
                    active.fail(verdict.label)
                    return verdict
        return None

    async def _push_once(self, wish: ProbeWish, size_bytes: int) -> Verdict | None:
        probe_id = f"probe-{secrets.token_hex(12)}"
        layout = flat_layout("probe", size_bytes)
        request = admission_pb2.AdmitMoveRequest(
            move_id=probe_id,
            session_id=probe_id,
            epoch=1,
            contract=contract_to_proto(wish.contract),
            source_node_id=wish.source_node_id,
            target_node_id=wish.target_node_id,
            extent_bytes=layout.extent_bytes,
            topology_hash=layout.topology_hash,
            purpose=move_pb2.MOVE_PURPOSE_PROBE,
            client_id=wish.client_id,
        )
        answer: admission_pb2.AdmitMoveResponse = await call(
            self._peers.admission().AdmitMove, request, timeout_s=self._deadlines.admit_s
        )
        verdict = verdict_from_proto(answer.verdict)
        if not verdict.admitted:
            return verdict
        manifest = Manifest(
            session_id=probe_id,
            epoch=1,
            block_index=0,
            layout=layout,
            fingerprint=wish.fingerprint,
            determinism_tier=wish.contract.determinism_tier,
        )
        finish = admission_pb2.FinishMoveRequest(
            ticket_id=parse_claims(answer.ticket.claims).ticket_id,
            move_id=probe_id,
            reason="PROBE",
        )
        try:
            stats = await self._transfer(wish, answer.ticket, manifest)
            finish.push_stats.CopyFrom(stats)
        finally:
            with contextlib.suppress(WorldlineError):  # the ticket expires by itself
                await call(
                    self._peers.admission().FinishMove,
                    finish,
                    timeout_s=self._deadlines.quick_s,
                )
        return None

    async def _transfer(
        self, wish: ProbeWish, ticket: move_pb2.SignedTicket, manifest: Manifest
    ) -> move_pb2.PushStats:
        target = self._peers.mover(wish.target_node_id)
        reserved: mover_pb2.ReserveResponse = await call(
            target.Reserve,
            mover_pb2.ReserveRequest(ticket=ticket, layout=layout_to_proto(manifest.layout)),
            timeout_s=self._deadlines.reserve_s,
        )
        slot_from_proto(reserved.slot)  # parsed before it is trusted to name anything
        try:
            return await self._push(wish, ticket, manifest, reserved.reservation_id)
        finally:
            with contextlib.suppress(WorldlineError):  # the mover reaps reservations itself
                await call(
                    target.Release,
                    mover_pb2.ReleaseRequest(slot=reserved.slot, session_id=manifest.session_id),
                    timeout_s=self._deadlines.quick_s,
                )

    async def _push(
        self,
        wish: ProbeWish,
        ticket: move_pb2.SignedTicket,
        manifest: Manifest,
        reservation_id: str,
    ) -> move_pb2.PushStats:
        request = mover_pb2.PushRequest(
            ticket=ticket,
            manifest=manifest_to_proto(manifest),
            reservation_id=reservation_id,
            target_mover_address=self._peers.mover_address(wish.target_node_id),
            verification=move_pb2.VERIFICATION_OFF,
        )
        source = self._peers.mover(wish.source_node_id)
        async with mapped_errors():
            async for response in source.Push(request, timeout=self._deadlines.push_s):
                if response.WhichOneof("event") == "outcome":
                    stats = figures_to_proto(figures_from_proto(response.outcome.push_stats))
                    if stats is not None:
                        return stats
        raise InvariantBroken("the source mover ended a push without an outcome")
