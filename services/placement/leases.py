"""Leases: registration and renewal of nodes and engines."""

from __future__ import annotations

import asyncio
from collections import Counter

import structlog

from services.placement import node_table, session_table
from services.placement.opening import Sessions
from services.placement.orphans import OrphanWatch, find_orphans, foreign_slots
from services.placement.parked import ParkedWatch, find_parked_orphans
from services.placement.peers import Peers
from services.placement.records import SessionState
from services.placement.reported import Reported
from services.placement.runtime import Runtime
from services.placement.suspending import Suspensions
from services.placement.wire import (
    engine_from_proto,
    failed_from_proto,
    node_from_proto,
    parked_use_from_proto,
    self_checks_from_proto,
    slot_to_proto,
    use_from_proto,
)
from worldline.admissibility.row_codec import row_from_proto
from worldline.errors import InvalidInput, Unavailable
from worldline.fields import identifier
from worldline.telemetry import instruments
from worldline.v1 import placement_pb2

_log = structlog.get_logger(__name__)


class Leases:
    """Who is alive, on whose word."""

    def __init__(
        self,
        runtime: Runtime,
        sessions: Sessions,
        suspensions: Suspensions,
        peers: Peers,
        orphan_grace_ms: int,
        reported: Reported,
    ) -> None:
        self._runtime = runtime
        self._sessions = sessions
        self._suspensions = suspensions
        self._peers = peers
        self._orphan_grace_ms = orphan_grace_ms
        self._reported = reported
        self._watch = OrphanWatch(orphan_grace_ms)
        self._parked_watch = ParkedWatch(orphan_grace_ms)

    async def register_node(
        self, request: placement_pb2.RegisterNodeRequest
    ) -> placement_pb2.RegisterNodeResponse:
        """A mover has started; another process of its name is gone from now on.

        Raises:
            VersionSkew, InvalidInput: with the field.
        """
        node, fleet = node_from_proto(request), self._runtime.fleet
        before = fleet.nodes.get(node.node_id)
        await self._runtime.directory.do(node_table.put_node, node)
        fleet.put_node(node, _now())
        if before is not None and before.incarnation != node.incarnation:
            # Also at the same address: its channel may be waiting before it connects again.
            await self._peers.forget(before.mover_address)
        _log.info(
            "node.registered", node_id=node.node_id, devices=[one.name for one in node.devices]
        )
        return placement_pb2.RegisterNodeResponse(lease_ms=fleet.node_lease_ms)

    async def register_engine(
        self, request: placement_pb2.RegisterEngineRequest
    ) -> placement_pb2.RegisterEngineResponse:
        """An engine has started; sessions of an earlier process of its name are lost.

        Raises:
            VersionSkew, InvalidInput: with the field; `device` where its node has no slots on it.
            Unavailable: its node is not there yet.
        """
        engine, fleet = engine_from_proto(request), self._runtime.fleet
        if engine.node_id not in fleet.nodes:
            raise Unavailable(
                f"node {engine.node_id} of engine {engine.engine_id} is not registered yet",
                reason="NODE_UNKNOWN",
                field="node_id",
                retry_after_ms=200,
            )
        node = fleet.node(engine.node_id)
        if engine.device_of(node) is None:
            known = ", ".join(one.name for one in node.devices)
            raise InvalidInput(
                f"engine {engine.engine_id} runs on {engine.device} {engine.device_uuid}, where "
                f"node {node.node_id} has no slots; it has them on: {known}",
                reason="DEVICE_UNKNOWN",
                field="device",
            )
        before = fleet.engines.get(engine.engine_id)
        lost = await self._runtime.directory.do(node_table.put_engine, engine)
        fleet.put_engine(engine, _now())
        if before is not None and before.incarnation != engine.incarnation:
            await self._peers.forget(before.engine_address)
        _log.info("engine.registered", engine_id=engine.engine_id, sessions_lost=lost)
        return placement_pb2.RegisterEngineResponse(lease_ms=fleet.engine_lease_ms)

    async def renew_node(
        self, request: placement_pb2.RenewNodeRequest
    ) -> placement_pb2.RenewNodeResponse:
        """Extend a node's lease; name the LIVE slots and parked copies that nobody owns.

        Raises:
            NotFound: register first. Fenced: another process has this name now.
        """
        node_id, fleet = identifier(request.node_id, "node_id"), self._runtime.fleet
        uses = tuple(use_from_proto(one) for one in request.slots)
        # Before and after: a suspend that ends in between is in one of them.
        parking = self._suspensions.park_ids()
        sessions = await self._runtime.sessions()
        # Read after the sessions: a move that ends in between is in one of the two.
        moves = self._runtime.open_move_tasks()
        foreign = foreign_slots(uses, node_id, sessions, moves)
        now = _now()
        fleet.renew_node(
            node_id,
            request.incarnation,
            Counter(one.device for one in foreign),
            now,
            {one.slot: one.device for one in foreign if one.live},
        )
        self._reported.note_slots(node_id, request.slots)
        closing = self._runtime.closing.keys() | self._suspensions.under_way()
        found = find_orphans(uses, sessions, moves, self._orphan_grace_ms, closing)
        orphans = self._watch.ripe(node_id, found, now)
        if orphans:
            _log.warning("slots.orphaned", node_id=node_id, slots=[str(one) for one in orphans])
            instruments().reaped("slot", len(orphans))
        parked = tuple(parked_use_from_proto(one) for one in request.parked)
        named = {one.parked.park_id for one in sessions if one.parked is not None}
        named |= parking | self._suspensions.park_ids()
        stray = find_parked_orphans(parked, named, self._orphan_grace_ms)
        dropped = self._parked_watch.ripe(node_id, stray, now)
        if dropped:
            _log.warning("parked.orphaned", node_id=node_id, park_ids=dropped)
            instruments().reaped("parked", len(dropped))
        return placement_pb2.RenewNodeResponse(
            lease_ms=fleet.node_lease_ms,
            orphans=[slot_to_proto(one) for one in orphans],
            parked_orphans=dropped,
        )

    async def renew_engine(
        self, request: placement_pb2.RenewEngineRequest
    ) -> placement_pb2.RenewEngineResponse:
        """Extend an engine's lease; answer what it owns and in which epoch.

        Raises:
            NotFound: register first. Fenced: another process has this name now.
        """
        engine_id, fleet = identifier(request.engine_id, "engine_id"), self._runtime.fleet
        rows = tuple(row_from_proto(row) for row in request.rows)
        failed = tuple(failed_from_proto(one) for one in request.failed)
        fleet.renew_engine(engine_id, request.incarnation, rows, _now())
        fleet.note_self_checks(
            engine_id, request.incarnation, self_checks_from_proto(request.self_checks)
        )
        self._reported.note_blocks(engine_id, request.running)
        for one in failed:
            self._sessions.close_failed(one, engine_id, request.incarnation)
        directory = self._runtime.directory
        revived = await directory.do(
            session_table.revive_sessions_of, engine_id, request.incarnation
        )
        if revived:
            _log.info("sessions.revived", engine_id=engine_id, count=revived)
        owned = [
            placement_pb2.RenewEngineResponse.Ownership(session_id=one.session_id, epoch=one.epoch)
            for one in await self._runtime.sessions()
            if one.owner == engine_id
            and one.owner_incarnation == request.incarnation
            and one.state is not SessionState.LOST
        ]
        return placement_pb2.RenewEngineResponse(lease_ms=fleet.engine_lease_ms, owned=owned)


def _now() -> float:
    return asyncio.get_running_loop().time()
