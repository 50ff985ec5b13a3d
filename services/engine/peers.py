"""Peers: the calls that an engine makes, to its node's mover and to placement."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from services.engine.core import World
from services.engine.device import EngineDevice
from services.engine.events import MoveOutcome
from services.engine.selfcheck import SelfCheck
from services.engine.slotfetch import map_slot
from services.engine.slotmap import SlotMap
from services.engine.tombstones import FailedWorld
from worldline.admissibility.profile_row import ProfileRow
from worldline.admissibility.row_codec import row_to_proto
from worldline.errors import NotFound
from worldline.rpc.channel import PROTOCOL_VERSION, ChannelPool, call
from worldline.state.codec import fingerprint_to_proto
from worldline.state.manifest import Fingerprint
from worldline.v1 import engine_pb2, move_pb2, mover_pb2, park_pb2, placement_pb2
from worldline.v1.mover_pb2_grpc import MoverServiceStub
from worldline.v1.placement_pb2_grpc import PlacementServiceStub

_COMMITTED = frozenset({move_pb2.MOVE_PHASE_COMMITTED, move_pb2.MOVE_PHASE_DONE})
_RECORDED = frozenset({park_pb2.SUSPENSION_PHASE_RECORDED, park_pb2.SUSPENSION_PHASE_DONE})
_ENDED = frozenset({move_pb2.MOVE_PHASE_ABORTED, move_pb2.MOVE_PHASE_REJECTED})


class Slots(Protocol):
    """Where slots come from."""

    async def allocate(self, session_id: str, extent_bytes: int) -> move_pb2.SlotRef:
        """A LIVE slot for a new session."""

    async def map(self, slot: move_pb2.SlotRef, session_id: str) -> SlotMap:
        """The slot's memory in this process."""

    async def release(self, slot: move_pb2.SlotRef, session_id: str) -> None:
        """Give a slot back that no session lives in."""


class MoverSlots:
    """`Slots` of this node's mover, on the engine's device."""

    def __init__(
        self, channels: ChannelPool, address: str, timeout_s: float, device: EngineDevice
    ) -> None:
        self._stub = MoverServiceStub(channels.get(address))
        self._timeout_s = timeout_s
        self._device = device

    async def allocate(self, session_id: str, extent_bytes: int) -> move_pb2.SlotRef:
        """See `Slots`. Raises the mover's own errors."""
        request = mover_pb2.AllocateRequest(
            session_id=session_id, extent_bytes=extent_bytes, device=self._device.asked_for
        )
        answer = await call(self._stub.Allocate, request, timeout_s=self._timeout_s)
        slot: move_pb2.SlotRef = answer.slot
        return slot

    async def map(self, slot: move_pb2.SlotRef, session_id: str) -> SlotMap:
        """See `Slots`."""
        request = mover_pb2.MapSlotRequest(slot=slot, session_id=session_id)
        answer = await call(self._stub.MapSlot, request, timeout_s=self._timeout_s)
        return await asyncio.to_thread(
            map_slot,
            answer.socket_path,
            answer.token,
            answer.slot_bytes,
            self._timeout_s,
            self._device,
        )

    async def release(self, slot: move_pb2.SlotRef, session_id: str) -> None:
        """See `Slots`."""
        request = mover_pb2.ReleaseRequest(slot=slot, session_id=session_id)
        await call(self._stub.Release, request, timeout_s=self._timeout_s)


class Directory:
    """Placement, as an engine sees it."""

    def __init__(self, channels: ChannelPool, address: str, timeout_s: float) -> None:
        self._stub = PlacementServiceStub(channels.get(address))
        self._timeout_s = timeout_s

    async def register(
        self,
        *,
        engine_id: str,
        node_id: str,
        engine_address: str,
        device: EngineDevice,
        fingerprint: Fingerprint,
        incarnation: str,
    ) -> float:
        """Announce this engine; returns its lease, milliseconds."""
        request = placement_pb2.RegisterEngineRequest(
            protocol_version=PROTOCOL_VERSION,
            engine_id=engine_id,
            node_id=node_id,
            engine_address=engine_address,
            device=device.name,
            fingerprint=fingerprint_to_proto(fingerprint),
            incarnation=incarnation,
            device_uuid=device.uuid,
            numa_node=device.numa_node,
        )
        answer = await call(self._stub.RegisterEngine, request, timeout_s=self._timeout_s)
        return float(answer.lease_ms)

    async def renew(
        self,
        engine_id: str,
        incarnation: str,
        rows: tuple[ProfileRow, ...],
        failed: tuple[FailedWorld, ...],
        running: Iterable[World],
        within_s: float,
        self_checks: tuple[SelfCheck, ...] = (),
    ) -> tuple[float, dict[str, int]]:
        """Renew; returns the lease in milliseconds and the epochs of the sessions owned here.

        `running` are the worlds here, for whoever looks how far they are and how they are served.
        An answer later than `within_s` would grant nothing any more, and is not waited for.
        """
        request = placement_pb2.RenewEngineRequest(
            engine_id=engine_id,
            incarnation=incarnation,
            rows=[row_to_proto(row) for row in rows],
            failed=[
                placement_pb2.RenewEngineRequest.FailedWorld(
                    session_id=world.session_id, epoch=world.epoch, message=world.message
                )
                for world in failed
            ],
            running=[
                placement_pb2.RenewEngineRequest.RunningWorld(
                    session_id=world.session_id,
                    epoch=world.epoch,
                    block_index=world.block_index,
                    block_counts=placement_pb2.BlockCounts(
                        blocks=world.pace.blocks_here,
                        degraded_blocks=world.pace.degraded_blocks,
                        releases_skipped=world.pace.releases_skipped,
                        missed_periods=world.pace.missed_periods,
                    ),
                )
                for world in running
            ],
            self_checks=[
                engine_pb2.SelfCheck(preset=one.preset, differs=one.differs) for one in self_checks
            ],
        )
        timeout_s = min(self._timeout_s, within_s)
        answer = await call(self._stub.RenewEngine, request, timeout_s=timeout_s)
        return float(answer.lease_ms), {item.session_id: item.epoch for item in answer.owned}

    async def outcome(self, move_id: str) -> MoveOutcome:
        """How far a move got, or a suspend or resume. What nobody knows says nothing."""
        request = placement_pb2.GetMoveRequest(move_id=move_id)
        try:
            answer = await call(self._stub.GetMove, request, timeout_s=self._timeout_s)
        except NotFound:
            return await self._outcome_of_suspension(move_id)
        phase = answer.move.phase
        return MoveOutcome(
            committed=phase in _COMMITTED,
            ended=phase in _ENDED,
            over=phase == move_pb2.MOVE_PHASE_DONE,
        )

    async def _outcome_of_suspension(self, suspension_id: str) -> MoveOutcome:
        request = placement_pb2.GetSuspensionRequest(suspension_id=suspension_id)
        try:
            answer = await call(self._stub.GetSuspension, request, timeout_s=self._timeout_s)
        except NotFound:
            return MoveOutcome()
        found = answer.suspension
        return MoveOutcome(
            committed=found.phase in _RECORDED,
            ended=found.phase == park_pb2.SUSPENSION_PHASE_ABORTED,
            over=found.phase == park_pb2.SUSPENSION_PHASE_DONE,
            suspended=found.verb == park_pb2.SUSPENSION_VERB_SUSPEND,
        )
