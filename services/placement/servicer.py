"""Servicer: placement's gRPC methods. Each parses its request, asks, and writes the answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Protocol

import grpc

from services.placement import move_table
from services.placement.drain_record import DrainReport
from services.placement.draining import Drains
from services.placement.fork import ForkWish
from services.placement.forking import Forks
from services.placement.leases import Leases
from services.placement.opening import OpenWish, Sessions
from services.placement.parked import kind_of
from services.placement.phases import Goal
from services.placement.progress import progress_of
from services.placement.records import SessionRecord, SessionState
from services.placement.reported import Reported
from services.placement.runtime import Runtime
from services.placement.suspending import Suspensions
from services.placement.suspension_record import suspension_to_proto
from services.placement.verbs import Verbs
from services.placement.wire import (
    device_to_proto,
    engine_to_proto,
    failure_to_proto,
    limit_of,
    move_to_proto,
    session_to_proto,
    world_from_proto,
)
from worldline.contract import contract_from_proto
from worldline.errors import InvalidInput, NotFound
from worldline.fields import identifier, non_negative, whole
from worldline.rpc.census import process_census
from worldline.state.codec import manifest_to_proto
from worldline.v1 import move_pb2, placement_pb2, placement_pb2_grpc
from worldline.verdict import Verdict, verdict_to_proto

#: Metadata by which a client names itself; its address where it does not.
CLIENT_ID_KEY = "worldline-client-id"
#: A day: a drain that takes longer is no drain.
DEADLINE_MS_MAX = 86_400_000
#: Longest that an answer is held back for news: below what clients and proxies wait.
DESCRIBE_WAIT_MS_MAX = 30_000


class TraceAnswers(Protocol):
    """What GetTrace needs of the trace store."""

    def response(self, trace_id: str) -> placement_pb2.GetTraceResponse:
        """The trace's spans."""


class PlacementServicer(placement_pb2_grpc.PlacementServiceServicer):
    """PlacementService over the runtime."""

    def __init__(
        self,
        runtime: Runtime,
        sessions: Sessions,
        verbs: Verbs,
        suspensions: Suspensions,
        forks: Forks,
        leases: Leases,
        drains: Drains,
        reported: Reported,
        traces: TraceAnswers,
    ) -> None:
        self._runtime = runtime
        self._sessions = sessions
        self._verbs = verbs
        self._suspensions = suspensions
        self._forks = forks
        self._leases = leases
        self._drains = drains
        self._reported = reported
        self._traces = traces

    # --- sessions ---

    async def OpenSession(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.OpenSessionRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.OpenSessionResponse:
        """A live session, or the verdict that there is no room."""
        opened = await self._sessions.open(
            OpenWish(
                contract=contract_from_proto(request.contract),
                world=world_from_proto(request.world),
                node_id=_optional(request.node_id, "node_id"),
                idempotency_key=_optional(request.idempotency_key, "idempotency_key"),
                client_id=_client_id(context),
            )
        )
        if isinstance(opened, Verdict):
            return placement_pb2.OpenSessionResponse(verdict=verdict_to_proto(opened))
        verdict = Verdict.admit(f"on {opened.node_id}", {"state_bytes": opened.extent_bytes})
        return placement_pb2.OpenSessionResponse(
            session=self._session(opened), verdict=verdict_to_proto(verdict)
        )

    async def CloseSession(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.CloseSessionRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.CloseSessionResponse:
        """Close; closing twice changes nothing."""
        await self._sessions.close(identifier(request.session_id, "session_id"))
        return placement_pb2.CloseSessionResponse()

    async def ResolveSession(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.ResolveSessionRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.ResolveSessionResponse:
        """Where the session lives now."""
        session = await self._runtime.session(identifier(request.session_id, "session_id"))
        if session.state is SessionState.CLOSED:
            raise NotFound(
                f"session {session.session_id} is closed",
                reason="SESSION_CLOSED",
                field="session_id",
            )
        return placement_pb2.ResolveSessionResponse(session=self._session(session))

    async def ListSessions(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.ListSessionsRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.ListSessionsResponse:
        """Every session that is not closed."""
        sessions = await self._runtime.sessions()
        return placement_pb2.ListSessionsResponse(sessions=[self._session(one) for one in sessions])

    async def ListNodes(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.ListNodesRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.ListNodesResponse:
        """Every node with its engines, by name."""
        fleet, now = self._runtime.fleet, asyncio.get_running_loop().time()
        sessions = await self._runtime.sessions()
        used = fleet.slots_used(sessions, self._runtime.open_move_tasks())
        nodes = []
        for node_id, node in sorted(fleet.nodes.items()):
            engines = [
                engine_to_proto(
                    engine,
                    alive=fleet.engine_alive(engine_id, now),
                    sessions=sum(
                        1 for one in sessions if one.owner == engine_id and one.takes_slot
                    ),
                    rows=fleet.rows(engine_id, now),
                    self_checks=fleet.self_checks(engine_id),
                    block_counts=self._reported.block_counts.of_engine(engine_id),
                )
                for engine_id, engine in sorted(fleet.engines.items())
                if engine.node_id == node_id
            ]
            nodes.append(
                placement_pb2.Node(
                    node_id=node_id,
                    mover_address=node.mover_address,
                    alive=fleet.node_alive(node_id, now),
                    engines=engines,
                    devices=[
                        device_to_proto(
                            one,
                            slots_free=max(0, one.slots_total - used[node_id, one.name]),
                            in_role=partial(self._reported.slots, node_id, one.name),
                        )
                        for one in node.devices
                    ],
                    host_id=node.host_id,
                    drain=self._drains.state_of(node_id),
                )
            )
        return placement_pb2.ListNodesResponse(nodes=nodes)

    def _session(self, session: SessionRecord) -> placement_pb2.Session:
        block_index = self._reported.block_index(session)
        counts = self._reported.block_counts.of_session(session.session_id)
        return session_to_proto(session, self._runtime.fleet, block_index, counts)

    # --- moves ---

    async def ListMoves(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.ListMovesRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.ListMovesResponse:
        """The newest first."""
        directory, limit = self._runtime.directory, limit_of(request.limit)
        if request.under_way:
            by_age = await directory.do(move_table.open_moves)
            session_id = request.session_id
            found = [one for one in by_age[::-1] if session_id in ("", one.move.session_id)][:limit]
        else:
            found = await directory.do(move_table.list_moves, request.session_id, limit)
        tasks = (self._runtime.move_task(one.move.move_id) for one in found)
        progress = [progress_of(task) for task in tasks if task is not None]
        return placement_pb2.ListMovesResponse(
            moves=[move_to_proto(one) for one in found],
            progress={one.move_id: one.to_proto() for one in progress},
        )

    async def GetMove(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.GetMoveRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.GetMoveResponse:
        """What the directory has on record: the truth."""
        entry = await self._verbs.entry(identifier(request.move_id, "move_id"))
        task = self._runtime.move_task(entry.move.move_id)
        progress = None if task is None else progress_of(task).to_proto()
        return placement_pb2.GetMoveResponse(move=move_to_proto(entry), progress=progress)

    async def WatchMove(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.WatchMoveRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[placement_pb2.WatchMoveResponse]:
        """Progress of a move that is under way, and last the record; the record alone after."""
        move_id = identifier(request.move_id, "move_id")
        task = self._runtime.move_task(move_id)
        if task is not None:
            async for progress in self._verbs.watch(task, lambda one: one.ended):
                yield placement_pb2.WatchMoveResponse(progress=progress.to_proto())
        entry = await self._verbs.final(move_id)
        yield placement_pb2.WatchMoveResponse(move=move_to_proto(entry))

    async def GetTrace(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.GetTraceRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.GetTraceResponse:
        """The spans of a move's trace, of every service."""
        entry = await self._verbs.entry(identifier(request.move_id, "move_id"))
        return await asyncio.to_thread(self._traces.response, entry.trace_id)

    async def RegisterState(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.RegisterStateRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.RegisterStateResponse:
        """The manifest of a live world, digests included."""
        session_id = identifier(request.session_id, "session_id")
        manifest = await self._verbs.register(session_id, request.granule_bytes)
        return placement_pb2.RegisterStateResponse(manifest=manifest_to_proto(manifest))

    async def AdmitMigration(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.AdmitMigrationRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.AdmitMigrationResponse:
        """A verdict, and the move that it belongs to."""
        verdict, move_id = await self._verbs.admit(
            identifier(request.session_id, "session_id"),
            _optional(request.target_node_id, "target_node_id"),
            _optional(request.idempotency_key, "idempotency_key"),
            _client_id(context),
            non_negative(request.saves_ms, "saves_ms"),
        )
        return placement_pb2.AdmitMigrationResponse(
            verdict=verdict_to_proto(verdict), move_id=move_id
        )

    async def Migrate(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.MigrateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[placement_pb2.MigrateResponse]:
        """Progress until the bytes are staged, then what is staged."""
        move_id = identifier(request.move_id, "move_id")
        async for progress in self._verbs.stage(move_id):
            yield placement_pb2.MigrateResponse(progress=progress.to_proto())
        manifest = self._verbs.staged_manifest(move_id)
        yield placement_pb2.MigrateResponse(manifest=manifest_to_proto(manifest))

    async def VerifyMigration(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.VerifyMigrationRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.VerifyMigrationResponse:
        """Whether the staged bytes are the source's; where not, the first difference."""
        failure = await self._verbs.verify(identifier(request.move_id, "move_id"))
        return placement_pb2.VerifyMigrationResponse(
            equal=failure is None, failure=failure_to_proto(failure)
        )

    async def CommitMigration(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.CommitMigrationRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.CommitMigrationResponse:
        """Re-verifies, then atomically swaps the owner (paper, Table 1)."""
        manifest, session = await self._verbs.commit(identifier(request.move_id, "move_id"))
        return placement_pb2.CommitMigrationResponse(
            manifest=manifest_to_proto(manifest), session=self._session(session)
        )

    async def RollbackMigration(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.RollbackMigrationRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.RollbackMigrationResponse:
        """Give the move up; the source stays authoritative."""
        manifest = await self._verbs.rollback(identifier(request.move_id, "move_id"))
        return placement_pb2.RollbackMigrationResponse(manifest=manifest_to_proto(manifest))

    async def MoveSession(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.MoveSessionRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[placement_pb2.MoveSessionResponse]:
        """All verbs at once: progress, and last the record whatever the outcome.

        The move goes on to its end when the client goes away.
        """
        begun = await self._runtime.begin_move(
            identifier(request.session_id, "session_id"),
            _optional(request.target_node_id, "target_node_id"),
            _optional(request.idempotency_key, "idempotency_key"),
            Goal.COMMIT,
            _client_id(context),
            non_negative(request.saves_ms, "saves_ms"),
        )
        move_id = begun.move.move_id
        task = self._runtime.move_task(move_id)
        if task is not None:
            async for progress in self._verbs.watch(task, lambda one: one.ended):
                yield placement_pb2.MoveSessionResponse(progress=progress.to_proto())
        entry = await self._verbs.final(move_id)
        yield placement_pb2.MoveSessionResponse(move=move_to_proto(entry))

    # --- suspend and resume ---

    async def SuspendSession(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.SuspendSessionRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.SuspendSessionResponse:
        """Park a live session's state and free its slot."""
        session_id = identifier(request.session_id, "session_id")
        entry = await self._suspensions.suspend(
            session_id,
            kind_of(request.kind),
            _optional(request.idempotency_key, "idempotency_key"),
        )
        return placement_pb2.SuspendSessionResponse(
            session=self._session(await self._runtime.session(session_id)),
            suspension=None if entry is None else suspension_to_proto(entry),
        )

    async def ResumeSession(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.ResumeSessionRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.ResumeSessionResponse:
        """Let a suspended session go on; a verdict where there is no room for it now."""
        session_id = identifier(request.session_id, "session_id")
        resumed = await self._suspensions.resume(
            session_id,
            _optional(request.idempotency_key, "idempotency_key"),
            _client_id(context),
        )
        session = self._session(await self._runtime.session(session_id))
        if isinstance(resumed, Verdict):
            return placement_pb2.ResumeSessionResponse(
                session=session, verdict=verdict_to_proto(resumed)
            )
        return placement_pb2.ResumeSessionResponse(
            session=session,
            suspension=None if resumed is None else suspension_to_proto(resumed),
        )

    async def GetSuspension(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.GetSuspensionRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.GetSuspensionResponse:
        """What the directory has on record: the truth."""
        entry = await self._suspensions.entry(identifier(request.suspension_id, "suspension_id"))
        return placement_pb2.GetSuspensionResponse(suspension=suspension_to_proto(entry))

    # --- forks ---

    async def ForkSession(  # noqa: N802
        self, request: placement_pb2.ForkSessionRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.ForkSessionResponse:
        """Live branches, all of them, or the verdict that there is no room."""
        forked = await self._forks.fork(
            ForkWish(
                session_id=request.session_id,
                count=request.count,
                contract=(
                    contract_from_proto(request.contract) if request.HasField("contract") else None
                ),
                same_noise=request.same_noise,
                first_branch=request.first_branch if request.HasField("first_branch") else None,
                idempotency_key=_optional(request.idempotency_key, "idempotency_key"),
                client_id=_client_id(context),
            )
        )
        if isinstance(forked, Verdict):
            return placement_pb2.ForkSessionResponse(verdict=verdict_to_proto(forked))
        verdict = Verdict.admit(
            f"{len(forked)} branches on {forked[0].node_id}",
            {"state_bytes": sum(one.extent_bytes for one in forked)},
        )
        return placement_pb2.ForkSessionResponse(
            branches=[self._session(one) for one in forked], verdict=verdict_to_proto(verdict)
        )

    # --- drains ---

    async def Drain(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.DrainRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.DrainResponse:
        """Close nodes, and begin to move their sessions elsewhere."""
        reports = await self._drains.drain(
            _some_nodes(request.node_ids),
            whole(request.deadline_ms, "deadline_ms", at_most=DEADLINE_MS_MAX),
        )
        return placement_pb2.DrainResponse(drains=_drains(reports))

    async def DescribeDrain(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.DescribeDrainRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.DescribeDrainResponse:
        """How far drains are, once that is news to the caller."""
        node_ids = [identifier(one, "node_ids") for one in request.node_ids]
        wait_ms = whole(request.wait_ms, "wait_ms", at_most=DESCRIBE_WAIT_MS_MAX)
        await self._drains.until_changed(_optional(request.seen, "seen"), wait_ms / 1e3)
        return placement_pb2.DescribeDrainResponse(
            drains=_drains(self._drains.reports(node_ids)), version=self._drains.version
        )

    async def Undrain(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.UndrainRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.UndrainResponse:
        """Let sessions come to nodes again."""
        drained = await self._drains.undrain(_some_nodes(request.node_ids))
        return placement_pb2.UndrainResponse(node_ids=drained)

    # --- movers, engines, operators ---

    async def RegisterNode(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.RegisterNodeRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.RegisterNodeResponse:
        """A mover has started."""
        return await self._leases.register_node(request)

    async def RegisterEngine(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.RegisterEngineRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.RegisterEngineResponse:
        """An engine has started."""
        return await self._leases.register_engine(request)

    async def RenewNode(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.RenewNodeRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.RenewNodeResponse:
        """A mover lives; it learns which of its slots nobody owns."""
        return await self._leases.renew_node(request)

    async def RenewEngine(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.RenewEngineRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.RenewEngineResponse:
        """An engine lives; it learns what it owns."""
        return await self._leases.renew_engine(request)

    async def DescribePlacement(  # noqa: N802 - gRPC's name
        self, request: placement_pb2.DescribePlacementRequest, context: grpc.aio.ServicerContext
    ) -> placement_pb2.DescribePlacementResponse:
        """What this process holds, and how moves ended."""
        sessions = await self._runtime.sessions()
        counts = process_census() | {
            "open_moves": len(self._runtime.open_move_tasks()),
            "sessions": len(sessions),
            "owned_tasks": len(self._runtime.owner),
        }
        outcomes = await self._runtime.directory.do(move_table.count_outcomes)
        return placement_pb2.DescribePlacementResponse(
            census=move_pb2.Census(counts=counts), moves_by_outcome=outcomes
        )


def _some_nodes(node_ids: Iterable[str]) -> list[str]:
    named = [identifier(one, "node_ids") for one in node_ids]
    if not named:
        raise InvalidInput("name at least one node", field="node_ids")
    return named


def _drains(reports: Iterable[DrainReport]) -> list[placement_pb2.DrainRecord]:
    now_s = time.time()
    return [one.to_proto(now_s) for one in reports]


def _optional(text: str, field: str) -> str:
    return identifier(text, field) if text else ""


def _client_id(context: grpc.aio.ServicerContext) -> str:
    """The client's own name, else where it calls from, without the port of this connection."""
    for key, value in context.invocation_metadata() or ():
        if key == CLIENT_ID_KEY:
            name = value if isinstance(value, str) else ""
            return identifier(name, CLIENT_ID_KEY)
    host, _, _ = str(context.peer()).rpartition(":")
    if not host:
        raise InvalidInput("the client has neither a name nor an address", field=CLIENT_ID_KEY)
    return host
