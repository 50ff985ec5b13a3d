"""Probe: measures a path that admission knows nothing about, with random bytes.

Two sizes, so that set-up time and rate can be told apart; each several times, so that the spread
shows before a move pays for not knowing it. A probe has its own move id and ticket, lands in a
SHADOW slot that can never be promoted, and gives everything back whatever happens. Whoever needs
that slot meanwhile has it: the probe is refused then, and its path measured when somebody asks
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass

from services.placement.asking import Asking
from services.placement.choose import RETRY_AFTER_MS
from services.placement.peers import Deadlines, Peers
from services.placement.targets import Target
from services.placement.wire import figures_from_proto, figures_to_proto, slot_from_proto
from worldline.contract import Contract, contract_to_proto
from worldline.errors import CapacityExhausted, InvariantBroken, WorldlineError
from worldline.rpc.channel import call
from worldline.rpc.push import PushCall
from worldline.state.codec import layout_to_proto
from worldline.state.layout import flat_layout
from worldline.state.manifest import Fingerprint, Manifest
from worldline.telemetry import note_verdict, span
from worldline.ticket import parse_claims
from worldline.v1 import admission_pb2, move_pb2, mover_pb2
from worldline.verdict import RejectReason, Verdict, verdict_from_proto

SMALL_BYTES = 1 << 20
LARGE_BYTES_MAX = 64 << 20
#: How often the small size is pushed: of three one at least finds the hosts idle, and set-up that
#: is believed too long makes the wire look faster than it is.
SMALL_COUNT = 3
#: Pushes without which a path counts as unmeasured: the small ones, and one large one.
PUSHES_MIN = SMALL_COUNT + 1
#: How often the large size is pushed. One measurement is charged half again what it took, five an
#: eighth (`worldline.admissibility.estimate`).
LARGE_COUNT = 5
#: No repeat begins later than this: on a slow path one measurement has to do.
REPEAT_WITHIN_S = 0.5
#: What movers say to a probe for whose wire or slot there is no room: others go first.
_REASONS = {
    "WIRE_TOO_LATE": RejectReason.WIRE_TOO_LATE,
    "NO_FREE_SLOT": RejectReason.TARGET_FULL,
    "PROBE_GAVE_WAY": RejectReason.TARGET_FULL,
}


@dataclass(frozen=True, slots=True)
class ProbeWish:
    """The path to measure, for whose sake, and the most bytes that both ends can hold.

    The devices are those of the session's move, as their nodes call them.
    """

    source_node_id: str
    target: Target
    contract: Contract
    fingerprint: Fingerprint
    slot_bytes: int
    source_device: str
    target_device: str
    client_id: str

    @property
    def target_node_id(self) -> str:
        """Where the bytes go."""
        return self.target.party.node_id


def probe_sizes(slot_bytes: int) -> tuple[int, ...]:
    """Small, then large, each as often as it takes; one size where the slot holds no more. Pure.

    1 MiB is dominated by set-up, 64 MiB by the rate on every lane in use here.
    """
    small, large = min(SMALL_BYTES, slot_bytes), min(LARGE_BYTES_MAX, slot_bytes)
    return (small,) * SMALL_COUNT + (large,) * LARGE_COUNT


class Probe:
    """Measures paths. One instance serves all moves: it holds nothing between calls."""

    def __init__(self, peers: Peers, deadlines: Deadlines, asking: Asking) -> None:
        self._peers = peers
        self._deadlines = deadlines
        self._asking = asking

    async def measure(self, wish: ProbeWish) -> Verdict | None:
        """Push each size, and the larger again. None when measured, else admission's no.

        Raises:
            WorldlineError: a call failed; what the probe held was given back.
        """
        now = asyncio.get_running_loop().time
        repeat_until_s = now() + REPEAT_WITHIN_S
        for number, size_bytes in enumerate(probe_sizes(wish.slot_bytes)):
            if number >= PUSHES_MIN and now() >= repeat_until_s:
                break
            with span("probe.push", size_bytes=size_bytes) as active:
                verdict = await self.push(wish, size_bytes)
                if isinstance(verdict, Verdict):
                    note_verdict(active, verdict)
                    active.fail(verdict.label)
                    # A no to a repeat leaves the path measured.
                    return verdict if number < PUSHES_MIN else None
        return None

    async def push(
        self, wish: ProbeWish, size_bytes: int, *, learn: bool = True
    ) -> Verdict | move_pb2.PushStats:
        """Push once: what it took, which admission is to `learn` from; or admission's no.

        Raises:
            WorldlineError: a call failed; what the probe held was given back.
        """
        probe_id = f"probe-{secrets.token_hex(12)}"
        layout = flat_layout("probe", size_bytes)
        request = admission_pb2.AdmitMoveRequest(
            move_id=probe_id,
            session_id=probe_id,
            epoch=1,
            contract=contract_to_proto(wish.contract),
            source_node_id=wish.source_node_id,
            targets=[wish.target.to_proto()],
            extent_bytes=layout.extent_bytes,
            topology_hash=layout.topology_hash,
            purpose=move_pb2.MOVE_PURPOSE_PROBE,
            client_id=wish.client_id,
        )
        answer = await self._asking.admit_move(request)
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
            if learn:
                finish.push_stats.CopyFrom(stats)
            return stats
        except CapacityExhausted as error:
            # Others were quicker to ask: an answer, as if admission had known.
            reason = _REASONS.get(error.reason)
            if reason is None:
                raise
            return Verdict.reject(
                reason, error.message, retry_after_ms=error.retry_after_ms or RETRY_AFTER_MS
            )
        finally:
            with contextlib.suppress(WorldlineError):  # the ticket expires by itself
                await call(
                    self._peers.admission().FinishMove,
                    finish,
                    timeout_s=self._deadlines.quick_s,
                )

    async def _transfer(
        self, wish: ProbeWish, ticket: move_pb2.SignedTicket, manifest: Manifest
    ) -> move_pb2.PushStats:
        target = self._peers.mover(wish.target_node_id)
        reserved: mover_pb2.ReserveResponse = await call(
            target.Reserve,
            mover_pb2.ReserveRequest(
                ticket=ticket,
                layout=layout_to_proto(manifest.layout),
                device=wish.target_device,
            ),
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
        order = mover_pb2.PushOrder(
            ticket=ticket,
            session_id=manifest.session_id,
            epoch=manifest.epoch,
            layout=layout_to_proto(manifest.layout),
            reservation_id=reservation_id,
            target_mover_address=self._peers.mover_address(wish.target_node_id),
            verification=move_pb2.VERIFICATION_OFF,
            probe_device=wish.source_device,
        )
        source = self._peers.mover(wish.source_node_id)
        push = PushCall(source, order, self._deadlines.push_s)
        try:
            await push.arm()
            await push.go(manifest.block_index, manifest.layout)
            outcome = await push.outcome()
        finally:
            await push.close()
        stats = figures_to_proto(figures_from_proto(outcome.push_stats))
        if stats is None:
            raise InvariantBroken("a push ended without figures")
        return stats
