"""Runtime: the engine's process around its verbs: server, worker, loops, orderly shutdown."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog

from services.engine.settings import EngineSettings
from worldline.rpc.channel import ChannelPool
from worldline.rpc.dialled import check_dialled
from worldline.rpc.host import announce_ready
from worldline.rpc.server import GrpcServer
from worldline.telemetry import start

if TYPE_CHECKING:
    from services.engine.device import EngineDevice
    from services.engine.engine import Engine
    from services.engine.profile import Profiles
    from services.engine.upkeep import Upkeep
    from services.engine.worker import Worker

_log = structlog.get_logger(__name__)


class Addresses(NamedTuple):
    """Where others reach this engine, and its metrics; the latter empty where nobody can."""

    engine: str
    metrics: str


async def serve(settings: EngineSettings, stop: asyncio.Event) -> None:
    """Serve until `stop`.

    The port is bound before torch is imported: a taken port fails at once, naming it.
    """
    server = GrpcServer(reflection_enabled=settings.reflection)
    address = server.bind(settings.listen)
    check_dialled(
        placement_address=settings.placement_address,
        mover_address=settings.mover_address,
        trace_store=settings.trace_store,
    )
    telemetry = start(
        "engine",
        settings.trace_store,
        instance=settings.engine_id,
        log_format=settings.log_format,
        log_level=settings.log_level,
        metrics_listen=settings.metrics_listen,
    )
    addresses = Addresses(settings.advertise or address, telemetry.metrics_address)
    try:
        await _serve_engine(settings, server, addresses, stop)
    finally:
        telemetry.shutdown(settings.flush_s)


async def _serve_engine(
    settings: EngineSettings, server: GrpcServer, addresses: Addresses, stop: asyncio.Event
) -> None:
    from services.engine.binding import bind_engine
    from services.engine.device import describe_device, fix_numerics
    from services.engine.doctor import engine_facts
    from services.engine.profile import Profiles
    from services.engine.servicer import EngineServicer
    from services.engine.worker import Worker
    from worldline.doctor.report import report_surroundings
    from worldline.doctor.servicer import ProcessDoctor
    from worldline.v1.engine_pb2_grpc import add_EngineServiceServicer_to_server

    device, binding = bind_engine(settings, describe_device(settings.device))
    fix_numerics(device)
    channels = ChannelPool()
    worker = Worker(settings.threads, device)
    profiles = Profiles(device.name, binding)
    engine, upkeep = build(settings, device, worker, channels, addresses.engine, profiles)
    try:
        servicer = EngineServicer(engine, settings.engine_id)
        server.add(add_EngineServiceServicer_to_server, servicer, "worldline.v1.EngineService")
        examine = partial(engine_facts, settings, device, engine)
        ProcessDoctor(examine).add_to(server)
        await server.start()
        register = upkeep.register(settings.register_timeout_s)
        if not await _first_of(stop, [asyncio.create_task(register, name="registration")]):
            return
        async with _loops(engine, upkeep) as loops:
            announce_ready(settings, addresses.engine, addresses.metrics)
            report_surroundings(await asyncio.to_thread(examine))
            _log.info("engine.ready", address=addresses.engine, engine_id=settings.engine_id)
            # A loop that ends by itself has failed: its error ends the process.
            await _first_of(stop, loops)
            await server.stop(settings.grace_s)
    finally:
        await server.stop(0)
        worker.close()
        await engine.shut_down()
        await channels.close()


def build(
    settings: EngineSettings,
    device: EngineDevice,
    worker: Worker,
    channels: ChannelPool,
    address: str,
    profiles: Profiles,
) -> tuple[Engine, Upkeep]:
    """The engine of this process and its upkeep; starts nothing."""
    from services.engine.chores import Chores
    from services.engine.engine import Engine
    from services.engine.model.factory import engine_code, presets, weights_digest
    from services.engine.models import Models
    from services.engine.peers import Directory, MoverSlots
    from services.engine.plugin import load_plugins
    from services.engine.selfcheck import SelfChecks
    from services.engine.upkeep import Identity, Upkeep

    plugins = load_plugins(settings.models, taken=presets())
    fingerprint = device.fingerprint(
        engine_code=engine_code(plugins),
        weights_digest=weights_digest(settings.weights_seed, plugins),
        threads=settings.threads,
    ).serving(presets(plugins))
    chores = Chores(worker)
    engine = Engine(
        chores=chores,
        models=Models(chores, settings.weights_seed, device.torch_device, plugins),
        slots=MoverSlots(channels, settings.mover_address, settings.call_timeout_s, device),
        fingerprint=fingerprint,
        profiles=profiles,
        self_checks=SelfChecks(chores),
        degrade_for_bulk=settings.degrade_for_bulk,
    )
    identity = Identity(
        engine_id=settings.engine_id,
        node_id=settings.node_id,
        engine_address=address,
        device=device,
        incarnation=uuid.uuid4().hex,
    )
    directory = Directory(channels, settings.placement_address, settings.call_timeout_s)
    return engine, Upkeep(engine, directory, identity)


@asynccontextmanager
async def _loops(engine: Engine, upkeep: Upkeep) -> AsyncIterator[list[asyncio.Task[None]]]:
    """The engine's three loops; cancelled and awaited at the end."""
    loops = [
        asyncio.create_task(engine.generation.run(), name="generation"),
        asyncio.create_task(upkeep.renew_forever(), name="renewal"),
        asyncio.create_task(upkeep.look_forever(), name="look"),
    ]
    try:
        yield loops
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


async def _first_of(stop: asyncio.Event, tasks: list[asyncio.Task[None]]) -> bool:
    """Wait for `stop` (False; the tasks that still run are cancelled) or a task's end (True).

    Raises what the task raised.
    """
    stopped = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        await asyncio.gather(stopped, return_exceptions=True)
    ended = [task for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in ended:
        task.result()
    return bool(ended)
