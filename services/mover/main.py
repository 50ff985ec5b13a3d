"""worldline-mover: owns a node's slots and moves their bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from services.mover.doctor import check_surroundings, chosen_facts, read_mover_facts
from services.mover.latency import keep_what_is_loaded, prefer_latency
from services.mover.membership import Membership
from services.mover.runtime import MoverRuntime
from services.mover.servicer import MoverServicer
from services.mover.settings import MoverSettings
from services.mover.transport.base import Transport
from services.mover.transport.lanes import Lane
from worldline import telemetry
from worldline.devicename import cuda_index
from worldline.doctor.report import report_surroundings
from worldline.doctor.servicer import ProcessDoctor
from worldline.rpc.host import announce_ready, load_settings, run_service, unless_stopped
from worldline.rpc.server import GrpcServer
from worldline.telemetry.catalogue import LEASES, SLOTS
from worldline.v1 import mover_pb2_grpc

TransportFactory = Callable[[Sequence[int]], Transport]


class Addresses(NamedTuple):
    """Where others reach this mover, and its metrics; the latter empty where nobody can."""

    mover: str
    metrics: str


def ucx_transport(lane: Lane) -> TransportFactory:
    """The transport of real work; imported late, so that a taken port fails before UCX loads."""

    def make(cuda_devices: Sequence[int]) -> Transport:
        from services.mover.transport.ucx import UcxTransport

        return UcxTransport(cuda_devices=cuda_devices, lane=lane)

    return make


async def serve(
    settings: MoverSettings,
    stop: asyncio.Event,
    transport_factory: TransportFactory | None = None,
) -> None:
    """Run one mover until `stop`, over UCX unless there is another factory.

    Raises:
        Unavailable, InvalidInput: it cannot work here; `field` names the setting, variable or
            device at fault.
    """
    server = GrpcServer(reflection_enabled=settings.reflection)
    bound = server.bind(settings.listen)
    address = settings.advertise or bound
    check_surroundings(settings, ucx=transport_factory is None)
    indices = (cuda_index(name) for name in settings.devices)
    cuda_devices = [index for index in indices if index is not None]
    make_transport = transport_factory or ucx_transport(settings.lane)
    tracing = telemetry.start(
        "mover",
        settings.trace_store,
        instance=settings.node_id,
        log_format=settings.log_format,
        log_level=settings.log_level,
        metrics_listen=settings.metrics_listen,
    )
    try:
        # Imports UCX: whatever is taken has failed by now.
        runtime = MoverRuntime(settings, make_transport(cuda_devices))
        tracing.observe(SLOTS, runtime.slot_counts)
        tracing.observe(LEASES, runtime.leases)
        addresses = Addresses(address, tracing.metrics_address)
        await _serve(settings, stop, server, runtime, addresses)
    finally:
        await asyncio.to_thread(tracing.shutdown, settings.flush_s)


async def _serve(
    settings: MoverSettings,
    stop: asyncio.Event,
    server: GrpcServer,
    runtime: MoverRuntime,
    addresses: Addresses,
) -> None:
    membership = Membership(runtime, addresses.mover)
    try:
        await runtime.start()
        server.add(
            mover_pb2_grpc.add_MoverServiceServicer_to_server,
            MoverServicer(runtime),
            "worldline.v1.MoverService",
        )
        examine = partial(read_mover_facts, settings, ask_ucx=runtime.transport.name == "ucx")
        ProcessDoctor(examine).add_to(server)
        await server.start()
        if settings.placement_address and not await unless_stopped(stop, membership.join()):
            return
        keep_what_is_loaded()
        announce_ready(settings, addresses.mover, addresses.metrics)
        report_surroundings(await asyncio.to_thread(chosen_facts, settings))
        await unless_stopped(stop, _first_failure([*runtime.loops, *membership.loops]))
    finally:
        await membership.leave()
        await server.stop(settings.grace_s)
        await runtime.stop()


async def _first_failure(loops: list[asyncio.Task[None]]) -> None:
    """A loop that ends by itself has failed: slots that nobody reaps any more are a leak."""
    ended, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
    for loop in ended:
        loop.result()


def main(transport_factory: TransportFactory | None = None) -> None:
    """Entry point of `worldline-mover`."""
    settings = load_settings(MoverSettings)
    prefer_latency()

    async def run(given: MoverSettings, stop: asyncio.Event) -> None:
        await serve(given, stop, transport_factory)

    run_service(settings, run)


if __name__ == "__main__":
    main()
