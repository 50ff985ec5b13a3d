"""Suspension steps: the calls behind each step of a suspend or a resume."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog

from services.placement import suspension_table
from services.placement.directory import Directory
from services.placement.fleet import Fleet
from services.placement.obligations import Obligations
from services.placement.peers import Deadlines, Peers
from services.placement.persistence import ask_again, fulfil
from services.placement.phases import Outcome
from services.placement.records import SessionRecord
from services.placement.suspension import (
    Done,
    Event,
    Failed,
    ParkFigures,
    Recorded,
    RecordLost,
    Settled,
    Step,
    Suspension,
    resumed_contract,
)
from services.placement.suspension_record import SuspensionEntry
from services.placement.values import Failure
from services.placement.wire import slot_from_proto, slot_to_proto, world_to_proto
from worldline.contract import contract_to_proto
from worldline.errors import Conflict, InvariantBroken
from worldline.fields import non_negative
from worldline.park import SuspensionPhase, SuspensionVerb
from worldline.rpc.channel import call
from worldline.state.codec import digests_from_proto, manifest_from_proto, manifest_to_proto
from worldline.state.manifest import Manifest
from worldline.v1 import engine_pb2, mover_pb2, park_pb2
from worldline.verdict import RejectReason

_log = structlog.get_logger(__name__)

#: Of calls that are idempotent.
_ATTEMPTS = 3
_ASK_DIRECTORY_S = 0.5


@dataclass(slots=True)
class SuspensionContext:
    """What steps need beyond the machine's facts; after a restart only `session` is there."""

    session: SessionRecord
    manifest: Manifest | None = None


class SuspensionSteps:
    """Carries out the steps of all suspensions; holds nothing between calls."""

    def __init__(
        self,
        directory: Directory,
        fleet: Fleet,
        peers: Peers,
        obligations: Obligations,
        deadlines: Deadlines,
    ) -> None:
        self._directory = directory
        self._fleet = fleet
        self._peers = peers
        self._obligations = obligations
        self._deadlines = deadlines
        self._forward: dict[Step, Callable[[Suspension, SuspensionContext], Awaitable[Event]]] = {
            Step.FREEZE: self._freeze,
            Step.PARK: self._park,
            Step.UNPARK: self._unpark,
            Step.ATTACH: self._attach,
        }
        self._owed: dict[Step, Callable[[Suspension], Awaitable[Outcome]]] = {
            Step.DETACH: self._detach,
            Step.RELEASE: self._release,
            Step.THAW: self._thaw,
            Step.ACTIVATE: self._activate,
            Step.DROP: self._drop,
        }

    async def do(self, step: Step, entry: SuspensionEntry, context: SuspensionContext) -> Event:
        """Carry out the step; obligations are pursued to their end.

        Raises:
            WorldlineError: a step before the record failed, or its effect is unknown.
        """
        if step is Step.RECORD:
            return await self._record(entry)
        if step in self._owed:
            return Settled(step, await self._owed[step](entry.suspension))
        return await self._forward[step](entry.suspension, context)

    # --- before the record -------------------------------------------------------------------

    async def _freeze(self, one: Suspension, context: SuspensionContext) -> Event:
        request = engine_pb2.FreezeRequest(
            session_id=one.session_id, epoch=one.epoch, move_id=one.suspension_id
        )
        answer: engine_pb2.FreezeResponse = await ask_again(
            lambda: call(
                self._peers.engine(one.party.engine_id).Freeze,
                request,
                timeout_s=self._deadlines.freeze_s,
            ),
            attempts=_ATTEMPTS,
            gone=lambda: self._fleet.engine_gone(one.party, _now()),
        )
        manifest = replace(manifest_from_proto(answer.manifest), digests=None)
        failure = check_manifest(manifest, context.session)
        if failure is not None:
            return Failed(Step.FREEZE, failure)
        context.manifest = manifest
        slot = slot_from_proto(answer.slot)
        return Done(
            Step.FREEZE,
            slot=slot,
            block_index=manifest.block_index,
            fingerprint=manifest.fingerprint,
        )

    async def _park(self, one: Suspension, context: SuspensionContext) -> Event:
        manifest = _manifest(context)
        if one.slot is None:
            raise InvariantBroken(f"suspension {one.suspension_id} parks without a slot")
        request = park_pb2.ParkRequest(
            park_id=one.park_id,
            manifest=manifest_to_proto(manifest),
            slot=slot_to_proto(one.slot),
            kind=park_pb2.ParkKind.Name(one.kind),
        )
        answer: park_pb2.ParkResponse = await call(
            self._peers.mover(one.party.node_id).Park, request, timeout_s=self._deadlines.park_s
        )
        digests = digests_from_proto(answer.digests, manifest.layout)
        figures = figures_from_proto(answer.stats)
        return Done(Step.PARK, digest=digests.whole, figures=figures)

    async def _unpark(self, one: Suspension, context: SuspensionContext) -> Event:
        request = park_pb2.UnparkRequest(
            park_id=one.park_id,
            session_id=one.session_id,
            device=self._fleet.device(one.party.engine_id).name,
        )
        answer: park_pb2.UnparkResponse = await call(
            self._peers.mover(one.party.node_id).Unpark,
            request,
            timeout_s=self._deadlines.park_s,
        )
        manifest = manifest_from_proto(answer.manifest)
        failure = check_manifest(manifest, context.session) or check_parked(
            manifest, context.session
        )
        if failure is not None:
            return Failed(Step.UNPARK, failure)
        context.manifest = manifest
        return Done(
            Step.UNPARK,
            slot=slot_from_proto(answer.slot),
            block_index=manifest.block_index,
            digest=0 if manifest.digests is None else manifest.digests.whole,
            figures=figures_from_proto(answer.stats),
        )

    async def _attach(self, one: Suspension, context: SuspensionContext) -> Event:
        session = context.session
        if one.slot is None:
            raise InvariantBroken(f"suspension {one.suspension_id} attaches without a slot")
        contract = resumed_contract(one, session.contract)
        # The engine continues at the session's tier from now on, and judges by it.
        manifest = replace(_manifest(context), determinism_tier=contract.determinism_tier)
        request = engine_pb2.AttachRequest(
            session_id=one.session_id,
            move_id=one.suspension_id,
            contract=contract_to_proto(contract),
            world=world_to_proto(session.world),
            manifest=manifest_to_proto(manifest),
            slot=slot_to_proto(one.slot),
        )
        try:
            await ask_again(
                lambda: call(
                    self._peers.engine(one.party.engine_id).Attach,
                    request,
                    timeout_s=self._deadlines.attach_s,
                ),
                attempts=_ATTEMPTS,
                gone=lambda: self._fleet.engine_gone(one.party, _now()),
            )
        except Conflict as error:
            if error.reason == RejectReason.NOT_DETERMINISTIC.name:
                # Its self-check came with this session: the next resume is decided with that known.
                self._fleet.note_self_checks(
                    one.party.engine_id,
                    one.party.engine_incarnation,
                    {session.world.preset: error.message},
                )
            raise
        return Done(Step.ATTACH)

    async def _record(self, entry: SuspensionEntry) -> Event:
        """Let the directory decide. An error leaves it unknown: it is asked until it answers."""
        try:
            await self._directory.do(suspension_table.record_suspension, entry)
        except suspension_table.Refused as refused:
            return _lost(str(refused))
        except sqlite3.Error as error:
            _log.exception("suspension.unknown", suspension_id=entry.suspension.suspension_id)
            return await self._ask_directory(entry.suspension.suspension_id, str(error))
        return Recorded()

    async def _ask_directory(self, suspension_id: str, cause: str) -> Event:
        while True:
            with contextlib.suppress(sqlite3.Error):
                found = await self._directory.do(suspension_table.get_suspension, suspension_id)
                if found is not None and found.suspension.phase is SuspensionPhase.RECORDED:
                    return Recorded()
                return _lost(f"the directory could not record it: {cause}")
            await asyncio.sleep(_ASK_DIRECTORY_S)

    # --- obligations -------------------------------------------------------------------------

    async def _detach(self, one: Suspension) -> Outcome:
        """The engine lets go: of a world that is suspended, or of one that it never got."""
        suspended = one.verb is SuspensionVerb.SUSPEND
        request = engine_pb2.DetachRequest(
            session_id=one.session_id,
            move_id=one.suspension_id,
            epoch=one.epoch,
            suspended=suspended,
        )
        return await self._with_engine("detach", one, "Detach", request)

    async def _thaw(self, one: Suspension) -> Outcome:
        request = engine_pb2.ThawRequest(
            session_id=one.session_id, epoch=one.epoch, move_id=one.suspension_id
        )
        return await self._with_engine("thaw", one, "Thaw", request)

    async def _activate(self, one: Suspension) -> Outcome:
        request = engine_pb2.ActivateRequest(
            session_id=one.session_id, move_id=one.suspension_id, epoch=one.epoch + 1
        )
        return await self._with_engine("activate", one, "Activate", request)

    async def _with_engine(
        self, what: str, one: Suspension, method: str, request: object
    ) -> Outcome:
        return await fulfil(
            what,
            lambda: call(
                getattr(self._peers.engine(one.party.engine_id), method),
                request,
                timeout_s=self._deadlines.quick_s,
            ),
            gone=lambda: self._fleet.engine_gone(one.party, _now()),
            within_s=self._deadlines.obligation_s,
        )

    async def _drop(self, one: Suspension) -> Outcome:
        return await self._obligations.drop_parked(one.party, one.park_id, one.session_id)

    async def _release(self, one: Suspension) -> Outcome:
        return await fulfil(
            "release",
            lambda: self._release_once(one),
            gone=lambda: self._fleet.mover_gone(one.party, _now()),
            within_s=self._deadlines.obligation_s,
        )

    async def _release_once(self, one: Suspension) -> None:
        """The slot by its name; where the answer that named it was lost, whatever it made."""
        if one.slot is not None:
            await self._obligations.release_slot(one.slot, one.session_id)
            return
        described: mover_pb2.DescribeMoverResponse = await call(
            self._peers.mover(one.party.node_id).DescribeMover,
            mover_pb2.DescribeMoverRequest(),
            timeout_s=self._deadlines.quick_s,
        )
        for each in described.slots:
            # The session is suspended: no slot of it anywhere is anybody else's.
            if each.session_id == one.session_id:
                await self._obligations.release_slot(slot_from_proto(each.slot), one.session_id)


def check_manifest(manifest: Manifest, session: SessionRecord) -> Failure | None:
    """Whether a manifest is of this session, in this epoch, in its layout. Pure."""
    return _first_wrong(
        "Conflict",
        ("session_id", manifest.session_id, session.session_id),
        ("epoch", manifest.epoch, session.epoch),
        ("topology_hash", manifest.layout.topology_hash.hex(), session.topology_hash.hex()),
        ("extent_bytes", manifest.layout.extent_bytes, session.extent_bytes),
    )


def check_parked(manifest: Manifest, session: SessionRecord) -> Failure | None:
    """Whether what came back is what the directory has on record as parked. Pure.

    The mover's word is not taken for it: another copy under the same name would be whole too.
    """
    parked = session.parked
    if parked is None:
        return Failure("InvariantBroken", "INVARIANT_BROKEN", "nothing is parked")
    digest = None if manifest.digests is None else manifest.digests.whole
    return _first_wrong(
        "IntegrityError",
        ("block_index", manifest.block_index, parked.block_index),
        ("digests.whole", digest, parked.digest),
    )


def _first_wrong(kind: str, *pairs: tuple[str, object, object]) -> Failure | None:
    for name, actual, wanted in pairs:
        if actual != wanted:
            return Failure(
                kind=kind,
                reason="MANIFEST_MISMATCH",
                message=f"the manifest's {name} is {actual}, the session's is {wanted}",
                field=f"manifest.{name}",
            )
    return None


def figures_from_proto(message: park_pb2.ParkStats) -> ParkFigures:
    """Parse what a crossing took.

    Raises:
        InvalidInput: a time that is negative or not finite.
    """
    return ParkFigures(
        copied_bytes=message.copied_bytes,
        copy_ms=non_negative(message.copy_ms, "stats.copy_ms"),
        verify_ms=non_negative(message.verify_ms, "stats.verify_ms"),
        direct_io=message.direct_io,
    )


def _manifest(context: SuspensionContext) -> Manifest:
    if context.manifest is None:
        raise InvariantBroken("a step that needs the manifest runs before there is one")
    return context.manifest


def _lost(explanation: str) -> RecordLost:
    return RecordLost(Failure(kind="Fenced", reason="RECORD_LOST", message=explanation))


def _now() -> float:
    return asyncio.get_running_loop().time()
