"""Steps before the commit: each makes its calls and returns the event of its completion."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import structlog

from services.placement import events as ev
from services.placement import move_table
from services.placement.asking import Asking
from services.placement.choose import RETRY_AFTER_MS, drained, no_room
from services.placement.context import MoveContext
from services.placement.directory import Directory
from services.placement.fleet import Fleet
from services.placement.move import Move
from services.placement.peers import FREEZE_ATTEMPTS, Deadlines, Peers
from services.placement.persistence import ask_again
from services.placement.phases import Goal, MovePhase, Step
from services.placement.probe import Probe, ProbeWish
from services.placement.receipt import check_digests_equal, check_frozen, check_receipt
from services.placement.records import MoveEntry
from services.placement.target_rooms import TargetRooms
from services.placement.targets import Target, named_target
from services.placement.values import Failure, Party, Ticket
from services.placement.verifying import Verifying
from services.placement.wire import (
    failure_from_proto,
    figures_from_proto,
    receipt_from_proto,
    slot_from_proto,
    slot_to_proto,
    world_to_proto,
)
from worldline.contract import Contract, DeterminismTier, contract_to_proto
from worldline.errors import (
    CapacityExhausted,
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    InvariantBroken,
)
from worldline.rpc.channel import call
from worldline.rpc.push import PushCall
from worldline.state.codec import digests_from_proto, manifest_from_proto, manifest_to_proto
from worldline.state.manifest import Digests, Manifest
from worldline.ticket import TicketClaims, parse_claims
from worldline.v1 import admission_pb2, engine_pb2, manifest_pb2, move_pb2, mover_pb2
from worldline.verdict import RejectReason, Verdict, verdict_from_proto

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_ATTEMPTS = 3
_TOO_LATE = RejectReason.WIRE_TOO_LATE


def committed_contract(entry: MoveEntry, contract: Contract) -> Contract:
    """The session's contract after the commit: at T1 where the move dropped the tier. Pure."""
    if not entry.move.tier_dropped:
        return contract
    return contract.dropped()


@contextlib.asynccontextmanager
async def _within(limit_s: float, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        raise DeadlineExceeded(f"{what} took longer than {limit_s:.1f} s") from None


class Steps:
    """Carries out one move's steps before the commit, and the commit."""

    def __init__(
        self,
        directory: Directory,
        fleet: Fleet,
        peers: Peers,
        deadlines: Deadlines,
        asking: Asking,
        rooms: TargetRooms,
    ) -> None:
        self._directory = directory
        self._fleet = fleet
        self._peers = peers
        self._deadlines = deadlines
        self._asking = asking
        self._rooms = rooms
        self._probe = Probe(peers, deadlines, asking)
        self._verifying = Verifying(self._idempotent, peers, deadlines)
        #: Engines by name and incarnation, and a preset that each is warm for.
        self._warmed: set[tuple[str, str, str]] = set()
        self._by_step: dict[
            Step, Callable[[MoveEntry, MoveContext, int], Awaitable[ev.Completion]]
        ] = {
            Step.ASK_ADMISSION: self._ask_admission,
            Step.PROBE: self._measure,
            Step.RESERVE: self._reserve,
            Step.WARM: self._warm,
            Step.ARM: self._arm,
            Step.FREEZE: self._freeze,
            Step.PUSH: self._push,
            Step.VERIFY: self._verify,
            Step.ATTACH: self._attach,
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

    async def _idempotent(
        self, party: Party, make: Callable[[], Awaitable[T]], attempts: int = _ATTEMPTS
    ) -> T:
        """Ask again while the party's processes live."""

        def gone() -> bool:
            now = asyncio.get_running_loop().time()
            return self._fleet.engine_gone(party, now) or self._fleet.mover_gone(party, now)

        return await ask_again(make, attempts=attempts, gone=gone)

    async def _ask_admission(
        self, entry: MoveEntry, context: MoveContext, attempt: int
    ) -> ev.Completion:
        # A drain may have begun since they were chosen.
        open_targets = [
            one for one in context.targets if not self._fleet.cordoned(one.party.node_id)
        ]
        if not open_targets:
            text = "; ".join(sorted({drained(one.party.node_id) for one in context.targets}))
            verdict = Verdict.reject(RejectReason.NO_TARGET, text)
            return ev.Refused(attempt, Step.ASK_ADMISSION, verdict)
        async with self._rooms.found(context, tuple(open_targets)) as found:
            if isinstance(found, Verdict):
                return ev.Refused(attempt, Step.ASK_ADMISSION, found)
            return await self._ask_about(found, entry, context, attempt)

    async def _ask_about(
        self, targets: tuple[Target, ...], entry: MoveEntry, context: MoveContext, attempt: int
    ) -> ev.Completion:
        move, session = entry.move, context.session
        request = admission_pb2.AdmitMoveRequest(
            move_id=move.move_id,
            session_id=move.session_id,
            epoch=move.source_epoch,
            contract=contract_to_proto(session.contract),
            source_node_id=move.source.node_id,
            targets=[one.to_proto() for one in targets],
            extent_bytes=session.extent_bytes,
            topology_hash=session.topology_hash,
            purpose=move_pb2.MOVE_PURPOSE_SESSION,
            client_id=context.client_id,
            saves_ms=context.saves_ms,
            bulk_wait_ms=context.bulk_wait_ms,
        )
        answer = await self._asking.admit_move(request)
        verdict = verdict_from_proto(answer.verdict)
        target = named_target(targets, answer)
        if not verdict.admitted:
            party = None if target is None else target.party
            return ev.Refused(attempt, Step.ASK_ADMISSION, verdict, party)
        claims = parse_claims(answer.ticket.claims)
        if target is None or claims.target_node_id != target.party.node_id:
            raise InvalidInput(
                "admission's ticket is for another target than its answer", field="ticket"
            )
        context.room_at = target.party.engine_id
        context.ticket = answer.ticket
        context.ticket_at_s = asyncio.get_running_loop().time()
        return ev.Admitted(
            attempt,
            _terms(claims),
            verdict,
            target.party,
            target.tier_dropped,
            warm=_warmth(target.party, session.world.preset) in self._warmed,
        )

    async def _measure(self, entry: MoveEntry, context: MoveContext, attempt: int) -> ev.Completion:
        move = entry.move
        source = self._fleet.device(move.source.engine_id)
        target = self._fleet.device(move.target.engine_id)
        refused = await self._probe.measure(
            ProbeWish(
                source_node_id=move.source.node_id,
                target=_target(context, move.target),
                contract=context.session.contract,
                fingerprint=self._fleet.engine(move.source.engine_id).fingerprint,
                slot_bytes=min(source.slot_bytes, target.slot_bytes),
                source_device=source.name,
                target_device=target.name,
                client_id=context.client_id,
            )
        )
        if refused is not None:
            return ev.Refused(attempt, Step.PROBE, refused)
        return ev.Probed(attempt)

    async def _reserve(self, entry: MoveEntry, context: MoveContext, attempt: int) -> ev.Completion:
        layout = manifest_pb2.Layout.FromString(context.session.layout)
        node_id = entry.move.target.node_id
        device = self._fleet.device(entry.move.target.engine_id).name
        try:
            answer: mover_pb2.ReserveResponse = await call(
                self._peers.mover(node_id).Reserve,
                mover_pb2.ReserveRequest(ticket=_ticket(context), layout=layout, device=device),
                timeout_s=self._deadlines.reserve_s,
            )
        except CapacityExhausted as error:
            verdict = no_room(node_id, error, RejectReason.TARGET_FULL)
            return ev.Refused(attempt, Step.RESERVE, verdict)
        return ev.Reserved(attempt, answer.reservation_id, slot_from_proto(answer.slot))

    async def _warm(self, entry: MoveEntry, context: MoveContext, attempt: int) -> ev.Completion:
        target, world = entry.move.target, world_to_proto(context.session.world)
        known = _warmth(target, world.preset)
        if known in self._warmed:
            return ev.Warmed(attempt)  # an engine's process warms a preset once
        request = engine_pb2.WarmWorldRequest(world=world)
        answer: engine_pb2.WarmWorldResponse = await self._idempotent(
            target,
            lambda: call(
                self._peers.engine(target.engine_id).WarmWorld,
                request,
                timeout_s=self._deadlines.warm_s,
            ),
        )
        self._check_repeats(entry, context, answer.self_check)
        others = {one for one in self._warmed if one[0] != target.engine_id or one[:2] == known[:2]}
        self._warmed = others | {known}
        return ev.Warmed(attempt)

    def _check_repeats(
        self, entry: MoveEntry, context: MoveContext, found: engine_pb2.SelfCheck
    ) -> None:
        """What the target has found out about itself; from now on targets are chosen by it.

        Raises:
            Conflict: NOT_DETERMINISTIC: the session is at T0, and would be there too.
        """
        if not found.differs:
            return
        target = entry.move.target
        self._fleet.note_self_checks(
            target.engine_id, target.engine_incarnation, {found.preset: found.differs}
        )
        tier = committed_contract(entry, context.session.contract).determinism_tier
        if tier is DeterminismTier.T0_BITWISE:
            raise Conflict(
                f"{target.engine_id} does not generate {found.preset} twice with the same bits "
                f"({found.differs}): ask again, the next move goes elsewhere or drops the tier "
                "where the contract lets it",
                reason=RejectReason.NOT_DETERMINISTIC.name,
            )

    async def _arm(self, entry: MoveEntry, context: MoveContext, attempt: int) -> ev.Completion:
        """Have both movers ready before the world stands still."""
        move, session = entry.move, context.session
        if session.slot is None:
            raise InvariantBroken(f"session {move.session_id} has no slot to push")
        ticket = _ticket(context)
        order = mover_pb2.PushOrder(
            ticket=ticket,
            session_id=move.session_id,
            epoch=move.source_epoch,
            layout=manifest_pb2.Layout.FromString(session.layout),
            source_slot=slot_to_proto(session.slot),
            # A reservation bears its ticket's id: this one may still be on its way.
            reservation_id=move.ticket_id,
            target_mover_address=self._peers.mover_address(move.target.node_id),
        )
        began_s = asyncio.get_running_loop().time()
        whole_s = self._deadlines.of_push_call(move.wait_s)
        context.push = PushCall(self._peers.mover(move.source.node_id), order, whole_s)
        try:
            async with _within(self._deadlines.of_arming(move.wait_s), "arming the push"):
                await context.push.arm()
        except BaseException as error:
            # Also where a client gives up a move that waits: the movers forget it at once.
            await context.drop_push()
            if isinstance(error, CapacityExhausted) and error.reason == _TOO_LATE.name:
                waited_s = asyncio.get_running_loop().time() - began_s
                return ev.Refused(attempt, Step.ARM, _withdrawn(move, error, waited_s * 1e3))
            raise
        return ev.Armed(attempt)

    async def _freeze(self, entry: MoveEntry, context: MoveContext, attempt: int) -> ev.Completion:
        move = entry.move
        if context.push is not None:
            await context.push.check()  # it may have waited for a slow target for too long
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
            FREEZE_ATTEMPTS,
        )
        manifest = manifest_from_proto(answer.manifest)
        slot = slot_from_proto(answer.slot)
        failure = check_frozen(manifest, slot, context.session, move)
        if failure is not None:
            return ev.Failed(attempt, Step.FREEZE, failure)
        context.manifest = replace(manifest, digests=None)
        context.total_bytes = manifest.layout.extent_bytes
        return ev.Frozen(attempt, slot, manifest.block_index)

    async def _push(self, entry: MoveEntry, context: MoveContext, attempt: int) -> ev.Completion:
        move, manifest = entry.move, _manifest(context)
        if context.push is None:
            raise InvariantBroken(f"move {move.move_id} pushes what was never armed")
        layout = manifest.layout
        limit_s = self._deadlines.of_push(parse_claims(_ticket(context).claims).lease_ms)
        try:
            async with _within(limit_s, "the push"):
                await context.push.go(manifest.block_index, layout)
                if move.goal is Goal.COMMIT:
                    context.verifying = self._verifying.begin(move, manifest, limit_s)
                outcome = await context.push.outcome(context.note_progress)
        except BaseException:
            await context.drop_verifying()
            raise
        finally:
            # A push that nobody waits for must not go on: the movers abort on this.
            await context.drop_push()
        source = digests_from_proto(outcome.digests, layout)
        receipt = receipt_from_proto(outcome.receipt, layout)
        failure = check_receipt(receipt, move, manifest, source)
        if failure is not None:
            return ev.Failed(attempt, Step.PUSH, failure)
        context.manifest = replace(manifest, digests=source)
        return ev.Pushed(
            attempt, source.whole, receipt.digests.whole, figures_from_proto(outcome.push_stats)
        )

    async def _verify(self, entry: MoveEntry, context: MoveContext, attempt: int) -> ev.Completion:
        move, manifest = entry.move, _manifest(context)
        answer = await self._verifying.answer(move, context, manifest)
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
        await self._idempotent(
            move.target,
            lambda: call(
                self._peers.engine(move.target.engine_id).Attach,
                request,
                timeout_s=self._deadlines.attach_s,
            ),
        )
        return ev.Attached(attempt)

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


def _warmth(target: Party, preset: str) -> tuple[str, str, str]:
    return target.engine_id, target.engine_incarnation, preset


def _terms(claims: TicketClaims) -> Ticket:
    return Ticket(
        ticket_id=claims.ticket_id,
        valid_for_ms=claims.valid_for_ms,
        lease_ms=claims.lease_ms,
        horizon_ms=claims.horizon_ms,
        move_ms=claims.move_ms,
        wire_ms=claims.wire_ms,
    )


def _withdrawn(move: Move, error: CapacityExhausted, waited_ms: float) -> Verdict:
    """The verdict on a move that could not be in time any more while it waited for its wire."""
    numbers = {"waited_ms": waited_ms}
    if move.ticket is not None:
        ticket = move.ticket
        numbers |= {
            "horizon_ms": ticket.horizon_ms,
            "move_ms": ticket.move_ms,
            "wire_ms": ticket.wire_ms,
            "wait_max_ms": ticket.wait_ms,
        }
    return Verdict.reject(_TOO_LATE, error.message, numbers, error.retry_after_ms or RETRY_AFTER_MS)


def _target(context: MoveContext, party: Party) -> Target:
    for one in context.targets:
        if one.party == party:
            return one
    raise InvariantBroken(f"{party.engine_id} on {party.node_id} is no target of this move")


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
