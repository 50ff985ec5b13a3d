"""Steps before the commit: each makes its calls and returns the event of its completion."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import structlog

from services.placement import events as ev
from services.placement import move_table
from services.placement.choose import no_room
from services.placement.context import MoveContext
from services.placement.directory import Directory
from services.placement.fleet import Fleet
from services.placement.peers import Deadlines, Peers
from services.placement.persistence import ask_again
from services.placement.phases import MovePhase, Step
from services.placement.probe import Probe, ProbeWish
from services.placement.receipt import check_digests_equal, check_frozen, check_receipt
from services.placement.records import MoveEntry
from services.placement.values import Failure, Party
from services.placement.wire import (
    failure_from_proto,
    figures_from_proto,
    receipt_from_proto,
    slot_from_proto,
    slot_to_proto,
    world_to_proto,
)
from worldline.contract import Contract, DeterminismTier, contract_to_proto
from worldline.errors import CapacityExhausted, InvalidInput, InvariantBroken
from worldline.rpc.channel import call, mapped_errors
from worldline.state.codec import digests_from_proto, manifest_from_proto, manifest_to_proto
from worldline.state.manifest import Digests, Manifest
from worldline.ticket import parse_claims
from worldline.v1 import admission_pb2, engine_pb2, manifest_pb2, move_pb2, mover_pb2
from worldline.verdict import RejectReason, verdict_from_proto

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_ATTEMPTS = 3


def committed_contract(entry: MoveEntry, contract: Contract) -> Contract:
    """The session's contract after the commit: at T1 where the move dropped the tier. Pure."""
    if not entry.move.tier_dropped:
        return contract
    return replace(
        contract,
        determinism_tier=DeterminismTier.T1_SCHEDULE_STABLE,
        tier_drop_allowed=False,
    )


class Steps:
    """Carries out one move's steps before the commit, and the commit."""

    def __init__(
        self, directory: Directory, fleet: Fleet, peers: Peers, deadlines: Deadlines
    ) -> None:
        self._directory = directory
        self._fleet = fleet
        self._peers = peers
        self._deadlines = deadlines
        self._probe = Probe(peers, deadlines)
        self._by_step: dict[
            Step, Callable[[MoveEntry, MoveContext, int], Awaitable[ev.Completion]]
        ] = {
            Step.ASK_ADMISSION: self._ask_admission,
            Step.PROBE: self._measure,
            Step.RESERVE: self._reserve,
            Step.WARM: self._warm,
            Step.FREEZE: self._freeze,
            Step.PUSH: self._push,
            Step.VERIFY: self._verify,
            Step.ATTACH: self._attach,
            Step.PROMOTE: self._promote,
            Step.RECORD_COMMIT: self._record_commit,
        }

    async def do(
        self, step: Step, entry: MoveEntry, context: MoveContext, attempt: int
    ) -> ev.Completion:
        """Carry out the step.

        Raises:
            WorldlineError: it failed, or whether it took effect is unknown.
        """
        return await self._by_step[step](entry, context, attempt)

    async def _idempotent(self, party: Party, make: Callable[[], Awaitable[T]]) -> T:
        """Ask again while the party's processes live."""

        def gone() -> bool:
            now = asyncio.get_running_loop().time()
            return self._fleet.engine_gone(party, now) or self._fleet.mover_gone(party, now)

        return await ask_again(make, attempts=_ATTEMPTS, gone=gone)

    async def _ask_admission(
        self, entry: MoveEntry, context: MoveContext, attempt: int
    ) -> ev.Completion:
        move, session = entry.move, context.session
        request = admission_pb2.AdmitMoveRequest(
            move_id=move.move_id,
            session_id=move.session_id,
            epoch=move.source_epoch,
            contract=contract_to_proto(session.contract),
            source_node_id=move.source.node_id,
            target_node_id=move.target.node_id,
            extent_bytes=session.extent_bytes,
            topology_hash=session.topology_hash,
            purpose=move_pb2.MOVE_PURPOSE_SESSION,
            client_id=context.client_id,
        )
        answer: admission_pb2.AdmitMoveResponse = await ask_again(
            lambda: call(
                self._peers.admission().AdmitMove, request, timeout_s=self._deadlines.admit_s
            ),
            attempts=_ATTEMPTS,
            gone=lambda: False,
        )
        verdict = verdict_from_proto(answer.verdict)
        if not verdict.admitted:
            return ev.Refused(attempt, Step.ASK_ADMISSION, verdict)
        context.ticket = answer.ticket
        return ev.Admitted(attempt, parse_claims(answer.ticket.claims).ticket_id, verdict)

    async def _measure(self, entry: MoveEntry, context: MoveContext, attempt: int) -> ev.Completion:
        move = entry.move
        nodes = (self._fleet.node(move.source.node_id), self._fleet.node(move.target.node_id))
        refused = await self._probe.measure(
            ProbeWish(
                source_node_id=move.source.node_id,
                target_node_id=move.target.node_id,
                contract=context.session.contract,
                fingerprint=self._fleet.engine(move.source.engine_id).fingerprint,
                slot_bytes=min(node.slot_bytes for node in nodes),
                client_id=context.client_id,
            )
        )
        if refused is not None:
            return ev.Refused(attempt, Step.PROBE, refused)
        return ev.Probed(attempt)

    async def _reserve(self, entry: MoveEntry, context: MoveContext, attempt: int) -> ev.Completion:
        layout = manifest_pb2.Layout.FromString(context.session.layout)
        node_id = entry.move.target.node_id
        try:
            answer: mover_pb2.ReserveResponse = await call(
                self._peers.mover(node_id).Reserve,
                mover_pb2.ReserveRequest(ticket=_ticket(context), layout=layout),
                timeout_s=self._deadlines.reserve_s,
            )
        except CapacityExhausted as error:
            verdict = no_room(node_id, error, RejectReason.TARGET_FULL)
            return ev.Refused(attempt, Step.RESERVE, verdict)
        return ev.Reserved(attempt, answer.reservation_id, slot_from_proto(answer.slot))

    async def _warm(self, entry: MoveEntry, context: MoveContext, attempt: int) -> ev.Completion:
        target = entry.move.target
        request = engine_pb2.WarmWorldRequest(world=world_to_proto(context.session.world))
        await self._idempotent(
            target,
            lambda: call(
                self._peers.engine(target.engine_id).WarmWorld,
                request,
                timeout_s=self._deadlines.warm_s,
            ),
        )
        return ev.Warmed(attempt)

    async def _freeze(self, entry: MoveEntry, context: MoveContext, attempt: int) -> ev.Completion:
        move = entry.move
        request = engine_pb2.FreezeRequest(
            session_id=move.session_id, epoch=move.source_epoch, move_id=move.move_id
        )
        answer: engine_pb2.FreezeResponse = await self._idempotent(
            move.source,
            lambda: call(
                self._peers.engine(move.source.engine_id).Freeze,
                request,
                timeout_s=self._deadlines.freeze_s,
            ),
        )
        manifest = manifest_from_proto(answer.manifest)
        failure = check_frozen(manifest, context.session, move)
        if failure is not None:
            return ev.Failed(attempt, Step.FREEZE, failure)
        context.manifest = replace(manifest, digests=None)
        context.total_bytes = manifest.layout.extent_bytes
        return ev.Frozen(attempt, slot_from_proto(answer.slot), manifest.block_index)

    async def _push(self, entry: MoveEntry, context: MoveContext, attempt: int) -> ev.Completion:
        move, manifest = entry.move, _manifest(context)
        if move.source_slot is None:
            raise InvariantBroken(f"move {move.move_id} pushes without a source slot")
        slot = slot_to_proto(move.source_slot)
        request = mover_pb2.PushRequest(
            ticket=_ticket(context),
            manifest=manifest_to_proto(manifest),
            source_slot=slot,
            reservation_id=move.reservation_id,
            target_mover_address=self._peers.mover_address(move.target.node_id),
            verification=move_pb2.VERIFICATION_PIPELINED,
        )
        outcome = await self._stream_push(move.source.node_id, request, context)
        layout = manifest.layout
        source = digests_from_proto(outcome.digests, layout)
        receipt = receipt_from_proto(outcome.receipt, layout)
        failure = check_receipt(receipt, move, manifest, source)
        if failure is not None:
            return ev.Failed(attempt, Step.PUSH, failure)
        context.manifest = replace(manifest, digests=source)
        return ev.Pushed(
            attempt, source.whole, receipt.digests.whole, figures_from_proto(outcome.push_stats)
        )

    async def _stream_push(
        self, node_id: str, request: mover_pb2.PushRequest, context: MoveContext
    ) -> mover_pb2.PushOutcome:
        outcome: mover_pb2.PushOutcome | None = None
        lease_ms = parse_claims(request.ticket.claims).lease_ms
        limit_s = self._deadlines.of_push(lease_ms)
        stream = self._peers.mover(node_id).Push(request, timeout=limit_s)
        try:
            async with mapped_errors():
                async for response in stream:
                    if response.WhichOneof("event") == "outcome":
                        outcome = response.outcome
                    else:
                        await context.note_progress(response.progress.sent_bytes)
        finally:
            # A push that nobody waits for must not go on: the movers abort on this.
            stream.cancel()
        if outcome is None:
            raise InvariantBroken("the source mover ended a push without an outcome")
        return outcome

    async def _verify(self, entry: MoveEntry, context: MoveContext, attempt: int) -> ev.Completion:
        move, manifest = entry.move, _manifest(context)
        request = mover_pb2.VerifyRequest(
            reservation_id=move.reservation_id, manifest=manifest_to_proto(manifest)
        )
        answer: mover_pb2.VerifyResponse = await self._idempotent(
            move.target,
            lambda: call(
                self._peers.mover(move.target.node_id).Verify,
                request,
                timeout_s=self._deadlines.verify_s,
            ),
        )
        if not answer.equal:
            return ev.VerifiedUnequal(attempt, failure_from_proto(answer.failure))
        # The mover's word is not taken for it: its digests must be the source's.
        try:
            target = digests_from_proto(answer.digests, manifest.layout)
        except InvalidInput as error:
            return ev.VerifiedUnequal(attempt, Failure.of(error))
        failure = check_digests_equal(manifest, _digests(manifest), target)
        if failure is not None:
            return ev.VerifiedUnequal(attempt, failure)
        return ev.VerifiedEqual(attempt, target.whole)

    async def _attach(self, entry: MoveEntry, context: MoveContext, attempt: int) -> ev.Completion:
        move, session = entry.move, context.session
        if move.target_slot is None:
            raise InvariantBroken(f"move {move.move_id} attaches without a target slot")
        slot = slot_to_proto(move.target_slot)
        contract = committed_contract(entry, session.contract)
        # The target continues at the session's tier from now on, and judges by it.
        manifest = replace(_manifest(context), determinism_tier=contract.determinism_tier)
        request = engine_pb2.AttachRequest(
            session_id=move.session_id,
            move_id=move.move_id,
            contract=contract_to_proto(contract),
            world=world_to_proto(session.world),
            manifest=manifest_to_proto(manifest),
            slot=slot,
        )
        await call(
            self._peers.engine(move.target.engine_id).Attach,
            request,
            timeout_s=self._deadlines.attach_s,
        )
        return ev.Attached(attempt)

    async def _promote(self, entry: MoveEntry, context: MoveContext, attempt: int) -> ev.Completion:
        move = entry.move
        if move.target_slot is None:
            raise InvariantBroken(f"move {move.move_id} promotes without a target slot")
        slot = slot_to_proto(move.target_slot)
        await call(
            self._peers.mover(move.target.node_id).Promote,
            mover_pb2.PromoteRequest(reservation_id=move.reservation_id, slot=slot),
            timeout_s=self._deadlines.quick_s,
        )
        return ev.Promoted(attempt)

    async def _record_commit(
        self, entry: MoveEntry, context: MoveContext, attempt: int
    ) -> ev.Completion:
        """Swap the owner. An error leaves it unknown: the directory is asked until it answers."""
        contract = committed_contract(entry, context.session.contract)
        try:
            answer = await self._directory.do(move_table.commit_move, entry, contract)
        except sqlite3.Error as error:
            _log.exception("commit.unknown", move_id=entry.move.move_id)
            answer = await self._ask_directory(entry, str(error))
        if isinstance(answer, move_table.Committed):
            return ev.CommitRecorded(attempt)
        return ev.CommitLost(
            attempt, Failure(kind="Fenced", reason="COMMIT_LOST", message=answer.explanation)
        )

    async def _ask_directory(
        self, entry: MoveEntry, cause: str
    ) -> move_table.Committed | move_table.CommitRefused:
        move = entry.move
        while True:
            with contextlib.suppress(sqlite3.Error):
                found = await self._directory.do(move_table.get_move, move.move_id)
                if found is not None and found.move.phase is MovePhase.COMMITTED:
                    return move_table.Committed(move.source_epoch + 1)
                return move_table.CommitRefused(f"the directory could not record it: {cause}")
            await asyncio.sleep(0.5)


def _ticket(context: MoveContext) -> move_pb2.SignedTicket:
    if context.ticket is None:
        raise InvariantBroken("a step that needs the ticket runs without one")
    return context.ticket


def _manifest(context: MoveContext) -> Manifest:
    if context.manifest is None:
        raise InvariantBroken("a step that needs the manifest runs before the freeze")
    return context.manifest


def _digests(manifest: Manifest) -> Digests:
    if manifest.digests is None:
        raise InvariantBroken("verify runs before the push")
    return manifest.digests
