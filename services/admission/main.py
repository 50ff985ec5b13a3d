"""Main: the process `worldline-admission`."""

from __future__ import annotations

import asyncio

from services.admission.keys import load_signer
from services.admission.pacing import ClientPacer
from services.admission.runtime import AdmissionRuntime
from services.admission.servicer import SERVICE_NAME, AdmissionServicer
from services.admission.settings import AdmissionSettings
from worldline.doctor.facts import ADMISSION
from worldline.doctor.reading import read_facts
from worldline.doctor.servicer import ProcessDoctor
from worldline.rpc.dialled import check_dialled
from worldline.rpc.host import announce_ready, load_settings, run_service
from worldline.rpc.server import GrpcServer
from worldline.telemetry import start
from worldline.telemetry.catalogue import LEASES
from worldline.v1 import admission_pb2_grpc


async def serve(settings: AdmissionSettings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set.

    Raises:
        Unavailable: a port is taken.
        InvalidInput: an address that nobody can have, settings that contradict each other, or a key
            file that is none.
    """
    server = GrpcServer(reflection_enabled=settings.reflection)
    address = server.bind(settings.listen)
    check_dialled(trace_store=settings.trace_store)
    runtime = AdmissionRuntime(
        settings.policy(), load_signer(settings.key_file), relearning=settings.relearn
    )
    pacer = ClientPacer(
        rate_per_s=settings.client_rate_per_s,
        wait_max_s=settings.client_wait_max_s,
        waiters_max=settings.client_waiters_max,
        clients_max=settings.clients_max,
    )
    server.add(
        admission_pb2_grpc.add_AdmissionServiceServicer_to_server,
        AdmissionServicer(runtime, pacer),
        SERVICE_NAME,
    )
    ProcessDoctor(lambda: read_facts(ADMISSION)).add_to(server)
    telemetry = start(
        "admission",
        settings.trace_store,
        log_format=settings.log_format,
        log_level=settings.log_level,
        metrics_listen=settings.metrics_listen,
    )
    telemetry.observe(LEASES, runtime.leases)
    try:
        # The group ends the service when the reaper fails: holds that never end are a leak.
        async with asyncio.TaskGroup() as tasks:
            reaper = tasks.create_task(runtime.reap(), name="admission.reaper")
            try:
                await server.start()
                announce_ready(settings, settings.advertise or address, telemetry.metrics_address)
                await stop.wait()
            finally:
                await server.stop(settings.grace_s)
                reaper.cancel()
    finally:
        telemetry.shutdown(settings.flush_s)


def main() -> None:
    """Entry point: settings from the environment and the command line."""
    run_service(load_settings(AdmissionSettings), serve)


if __name__ == "__main__":
    main()
