"""Servicer: gRPC to engine calls and back; parses at the edge, decides nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from services.engine.core import Phase
from services.engine.engine import Engine
from services.engine.fork_order import order_from_proto
from services.engine.inspect_order import inspect_order_from_proto
from services.engine.inspect_wire import inspected_to_proto
from services.engine.parse import spec_from_proto
from services.engine.play import play
from services.engine.session import Session
from worldline.admissibility.profile_row import RequestShape
from worldline.admissibility.row_codec import row_to_proto
from worldline.contract import DecodeTier, contract_from_proto
from worldline.fields import enum_member, identifier, whole
from worldline.rpc.census import process_census
from worldline.state.codec import layout_to_proto, manifest_from_proto, manifest_to_proto
from worldline.telemetry import span
from worldline.v1 import engine_pb2, move_pb2
from worldline.v1.engine_pb2_grpc import EngineServiceServicer


class EngineServicer(EngineServiceServicer):
    """`EngineService` over one `Engine`."""

    def __init__(self, engine: Engine, engine_id: str) -> None:
        self._engine = engine
        self._engine_id = engine_id

    async def Play(  # noqa: N802 - gRPC's name
        self,
        request_iterator: AsyncIterator[engine_pb2.PlayRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[engine_pb2.PlayResponse]:
        """See engine.proto."""
        async for response in play(self._engine, aiter(request_iterator)):
            yield response

    async def OpenWorld(  # noqa: N802
        self, request: engine_pb2.OpenWorldRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.OpenWorldResponse:
        """See engine.proto."""
        session_id = identifier(request.session_id, "session_id")
        contract = contract_from_proto(request.contract)
        spec = spec_from_proto(request.world)
        epoch = whole(request.epoch, "epoch")
        with span("engine.open", session_id=session_id, preset=spec.preset):
            session = await self._engine.arriving.open(session_id, epoch, contract, spec)
        layout = session.open_memory().layout()
        return engine_pb2.OpenWorldResponse(layout=layout_to_proto(layout), slot=session.slot)

    async def CloseWorld(  # noqa: N802
        self, request: engine_pb2.CloseWorldRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.CloseWorldResponse:
        """See engine.proto."""
        await self._engine.close(identifier(request.session_id, "session_id"), request.epoch)
        return engine_pb2.CloseWorldResponse()

    async def RegisterWorld(  # noqa: N802
        self, request: engine_pb2.RegisterWorldRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.RegisterWorldResponse:
        """See engine.proto."""
        session_id = identifier(request.session_id, "session_id")
        manifest, slot = await self._engine.register(session_id, request.granule_bytes)
        return engine_pb2.RegisterWorldResponse(manifest=manifest_to_proto(manifest), slot=slot)

    async def Freeze(  # noqa: N802
        self, request: engine_pb2.FreezeRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.FreezeResponse:
        """See engine.proto."""
        session_id, move_id = _named(request)
        with span("engine.freeze", session_id=session_id, move_id=move_id) as active:
            manifest, slot = await self._engine.freeze(session_id, request.epoch, move_id)
            active.set(block_index=manifest.block_index, epoch=manifest.epoch)
        return engine_pb2.FreezeResponse(manifest=manifest_to_proto(manifest), slot=slot)

    async def Thaw(  # noqa: N802
        self, request: engine_pb2.ThawRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.ThawResponse:
        """See engine.proto."""
        session_id, move_id = _named(request)
        with span("engine.thaw", session_id=session_id, move_id=move_id):
            block_index = self._engine.thaw(session_id, request.epoch, move_id)
        return engine_pb2.ThawResponse(block_index=block_index)

    async def WarmWorld(  # noqa: N802
        self, request: engine_pb2.WarmWorldRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.WarmWorldResponse:
        """See engine.proto."""
        spec = spec_from_proto(request.world)
        with span("engine.warm", preset=spec.preset):
            extent_bytes, found = await self._engine.warm(spec)
        row = None
        if request.measure:
            tier = enum_member(DecodeTier, request.measure, "measure")
            with span("engine.measure", preset=spec.preset):
                row = await self._engine.measure(RequestShape(spec.preset, tier))
        return engine_pb2.WarmWorldResponse(
            extent_bytes=extent_bytes,
            row=None if row is None else row_to_proto(row),
            self_check=engine_pb2.SelfCheck(preset=found.preset, differs=found.differs),
        )

    async def Attach(  # noqa: N802
        self, request: engine_pb2.AttachRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.AttachResponse:
        """See engine.proto."""
        session_id, move_id = _named(request)
        contract = contract_from_proto(request.contract)
        spec = spec_from_proto(request.world)
        manifest = manifest_from_proto(request.manifest)
        with span("engine.attach", session_id=session_id, move_id=move_id, epoch=manifest.epoch):
            await self._engine.arriving.attach(
                session_id, move_id, contract, spec, manifest, request.slot
            )
        return engine_pb2.AttachResponse()

    async def Activate(  # noqa: N802
        self, request: engine_pb2.ActivateRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.ActivateResponse:
        """See engine.proto."""
        session_id, move_id = _named(request)
        with span("engine.activate", session_id=session_id, move_id=move_id, epoch=request.epoch):
            block_index = self._engine.activate(session_id, move_id, request.epoch)
        return engine_pb2.ActivateResponse(block_index=block_index)

    async def Detach(  # noqa: N802
        self, request: engine_pb2.DetachRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.DetachResponse:
        """See engine.proto."""
        session_id, move_id = _named(request)
        with span("engine.detach", session_id=session_id, move_id=move_id):
            await self._engine.detach(
                session_id,
                move_id,
                request.engine_address,
                request.epoch,
                suspended=request.suspended,
            )
        return engine_pb2.DetachResponse()

    async def ForkWorld(  # noqa: N802
        self, request: engine_pb2.ForkWorldRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.ForkWorldResponse:
        """See engine.proto."""
        order = order_from_proto(request)
        count = len(order.branches)
        with span("engine.fork", session_id=order.session_id, branches=count) as active:
            forked = await self._engine.fork(order)
            active.set(block_index=forked.block_index, held_ms=round(forked.held_ms, 3))
        return engine_pb2.ForkWorldResponse(
            block_index=forked.block_index,
            branches=[
                engine_pb2.ForkWorldResponse.Branch(
                    layout=layout_to_proto(one.open_memory().layout()), slot=one.slot
                )
                for one in forked.sessions
            ],
        )

    async def InspectWorld(  # noqa: N802
        self, request: engine_pb2.InspectWorldRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.InspectWorldResponse]:
        """See engine.proto."""
        order = inspect_order_from_proto(request)
        async with aclosing(self._engine.inspecting.run(order)) as inspected:
            async for each in inspected:
                yield inspected_to_proto(each)

    async def DescribeEngine(  # noqa: N802
        self, request: engine_pb2.DescribeEngineRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.DescribeEngineResponse:
        """See engine.proto."""
        engine = self._engine
        sessions = [engine.sessions[name] for name in sorted(engine.sessions)]
        counts = {
            **process_census(),
            "sessions": len(sessions),
            "streams": sum(session.stream is not None for session in sessions),
            "tombstones": len(engine.tombstones),
            "slots_mapped": sum(session.is_mapped for session in sessions),
        }
        return engine_pb2.DescribeEngineResponse(
            engine_id=self._engine_id,
            worlds=[_world(session) for session in sessions],
            census=move_pb2.Census(counts=counts),
        )


def _named(
    request: (
        engine_pb2.FreezeRequest
        | engine_pb2.ThawRequest
        | engine_pb2.AttachRequest
        | engine_pb2.ActivateRequest
        | engine_pb2.DetachRequest
    ),
) -> tuple[str, str]:
    """Session and move of a request. Raises InvalidInput."""
    return identifier(request.session_id, "session_id"), identifier(request.move_id, "move_id")


def _world(session: Session) -> engine_pb2.DescribeEngineResponse.World:
    world = session.world
    # Generating is running, to everybody but the core.
    phase = Phase.RUNNING if world.phase is Phase.GENERATING else world.phase
    return engine_pb2.DescribeEngineResponse.World(
        session_id=world.session_id,
        epoch=world.epoch,
        block_index=world.block_index,
        phase=str(phase),
        slot=session.slot,
        missed_periods=world.pace.missed_periods,
        releases_skipped=world.pace.releases_skipped,
        degraded_blocks=world.pace.degraded_blocks,
    )
