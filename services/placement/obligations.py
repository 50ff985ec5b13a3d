"""Obligations: what a move owes its peers once its outcome is decided, pursued to an end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from services.placement.fleet import Fleet
from services.placement.peers import Deadlines, Peers
from services.placement.persistence import fulfil
from services.placement.phases import MovePhase, Outcome, Step
from services.placement.records import MoveEntry
from services.placement.values import Party, SlotName
from services.placement.wire import figures_to_proto, slot_from_proto, slot_to_proto
from worldline.rpc.channel import call
from worldline.v1 import admission_pb2, engine_pb2, move_pb2, mover_pb2, park_pb2

#: What a move's slot at its target may be before the commit.
_STAGED_ROLES = (move_pb2.SLOT_ROLE_SHADOW, move_pb2.SLOT_ROLE_LIVE)


class Obligations:
    """Carries out one obligation at a time; every call is idempotent at its peer."""

    def __init__(self, fleet: Fleet, peers: Peers, deadlines: Deadlines) -> None:
        self._fleet = fleet
        self._peers = peers
        self._deadlines = deadlines
        self._by_step: dict[Step, Callable[[MoveEntry], Awaitable[Outcome]]] = {
            Step.ACTIVATE: self._activate,
            Step.DETACH_SOURCE: self._detach_source,
            Step.RELEASE_SOURCE: self._release_source,
            Step.THAW_SOURCE: self._thaw_source,
            Step.DETACH_TARGET: self._detach_target,
            Step.RELEASE_TARGET: self._release_target,
            Step.FINISH_TICKET: self._finish_ticket,
        }

    async def do(self, step: Step, entry: MoveEntry) -> Outcome:
        """Pursue the obligation until it is met or cannot be."""
        return await self._by_step[step](entry)

    async def release_slot(self, slot: SlotName, session_id: str) -> None:
        """One attempt to give a slot back.

        Raises:
            WorldlineError: whether it took effect is unknown.
        """
        await call(
            self._peers.mover(slot.node_id).Release,
            mover_pb2.ReleaseRequest(slot=slot_to_proto(slot), session_id=session_id),
            timeout_s=self._deadlines.quick_s,
        )
        self._fleet.slot_released(slot)

    async def _with_engine(
        self, what: str, party: Party, make: Callable[[], Awaitable[object]]
    ) -> Outcome:
        return await fulfil(
            what,
            make,
            gone=lambda: self._fleet.engine_gone(party, asyncio.get_running_loop().time()),
            within_s=self._deadlines.obligation_s,
        )

    async def _with_mover(
        self, what: str, party: Party, make: Callable[[], Awaitable[object]]
    ) -> Outcome:
        return await fulfil(
            what,
            make,
            gone=lambda: self._fleet.mover_gone(party, asyncio.get_running_loop().time()),
            within_s=self._deadlines.obligation_s,
        )

    async def _activate(self, entry: MoveEntry) -> Outcome:
        move = entry.move
        request = engine_pb2.ActivateRequest(
            session_id=move.session_id, move_id=move.move_id, epoch=move.source_epoch + 1
        )
        return await self._with_engine(
            "activate",
            move.target,
            lambda: call(
                self._peers.engine(move.target.engine_id).Activate,
                request,
                timeout_s=self._deadlines.quick_s,
            ),
        )

    async def _thaw_source(self, entry: MoveEntry) -> Outcome:
        move = entry.move
        request = engine_pb2.ThawRequest(
            session_id=move.session_id, epoch=move.source_epoch, move_id=move.move_id
        )
        return await self._with_engine(
            "thaw",
            move.source,
            lambda: call(
                self._peers.engine(move.source.engine_id).Thaw,
                request,
                timeout_s=self._deadlines.quick_s,
            ),
        )

    async def _detach_source(self, entry: MoveEntry) -> Outcome:
        """After the commit: the clients of the source learn where the world went."""
        move = entry.move
        target = self._fleet.engines.get(move.target.engine_id)
        request = engine_pb2.DetachRequest(
            session_id=move.session_id,
            move_id=move.move_id,
            engine_address="" if target is None else target.engine_address,
            epoch=move.source_epoch + 1,
        )
        return await self._detach(move.source, request)

    async def _detach_target(self, entry: MoveEntry) -> Outcome:
        """Before the commit: no address, for there is nobody to tell."""
        move = entry.move
        request = engine_pb2.DetachRequest(
            session_id=move.session_id, move_id=move.move_id, epoch=move.source_epoch
        )
        return await self._detach(move.target, request)

    async def _detach(self, party: Party, request: engine_pb2.DetachRequest) -> Outcome:
        return await self._with_engine(
            "detach",
            party,
            lambda: call(
                self._peers.engine(party.engine_id).Detach,
                request,
                timeout_s=self._deadlines.quick_s,
            ),
        )

    async def _release_source(self, entry: MoveEntry) -> Outcome:
        move = entry.move
        slot = move.source_slot
        if slot is None:
            return Outcome.DONE
        return await self._with_mover(
            "release source",
            move.source,
            lambda: self.release_slot(slot, move.session_id),
        )

    async def _release_target(self, entry: MoveEntry) -> Outcome:
        """The slot by its name; where the reservation's reply was lost, whatever it made."""
        return await self._with_mover(
            "release target", entry.move.target, lambda: self._release_staged(entry)
        )

    async def _release_staged(self, entry: MoveEntry) -> None:
        move = entry.move
        if move.target_slot is not None:
            await self.release_slot(move.target_slot, move.session_id)
            return
        described: mover_pb2.DescribeMoverResponse = await call(
            self._peers.mover(move.target.node_id).DescribeMover,
            mover_pb2.DescribeMoverRequest(),
            timeout_s=self._deadlines.quick_s,
        )
        for each in described.slots:
            # The session has one open move, and its own slot is on another node: what it has here
            # is this move's, LIVE where it was verified before the reply or the record was lost.
            if each.session_id == move.session_id and each.role in _STAGED_ROLES:
                await self.release_slot(slot_from_proto(each.slot), move.session_id)

    async def _finish_ticket(self, entry: MoveEntry) -> Outcome:
        move = entry.move
        committed = move.phase is MovePhase.COMMITTED
        reason = "" if move.failure is None else move.failure.reason
        if move.verdict is not None and not move.verdict.admitted:
            reason = move.verdict.label
        request = admission_pb2.FinishMoveRequest(
            ticket_id=move.ticket_id,
            move_id=move.move_id,
            push_stats=figures_to_proto(move.figures),
            frozen_ms=entry.frozen_ms if committed else 0.0,
            committed=committed,
            reason=reason,
        )
        return await fulfil(
            "finish ticket",
            lambda: call(
                self._peers.admission().FinishMove, request, timeout_s=self._deadlines.quick_s
            ),
            gone=lambda: False,
            within_s=self._deadlines.finish_s,
        )

    async def drop_parked(self, party: Party, park_id: str, session_id: str) -> Outcome:
        """See a parked copy gone. One that is not is named as an orphan at its node's renewals."""
        request = park_pb2.DropParkedRequest(park_id=park_id, session_id=session_id)
        return await self._with_mover(
            "drop parked copy",
            party,
            lambda: call(
                self._peers.mover(party.node_id).DropParked,
                request,
                timeout_s=self._deadlines.quick_s,
            ),
        )

    async def close_world(self, party: Party, session_id: str, epoch: int) -> Outcome:
        """See a world closed at its engine, or its engine gone."""
        request = engine_pb2.CloseWorldRequest(session_id=session_id, epoch=epoch)
        return await self._with_engine(
            "close world",
            party,
            lambda: call(
                self._peers.engine(party.engine_id).CloseWorld,
                request,
                timeout_s=self._deadlines.quick_s,
            ),
        )
