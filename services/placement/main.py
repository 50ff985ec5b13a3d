"""Placement process: `worldline-placement`."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

from services.placement.asking import Asking
from services.placement.directory import Directory
from services.placement.doctor import FleetDoctor
from services.placement.draining import Drains
from services.placement.fleet import Fleet
from services.placement.forking import Forks
from services.placement.leases import Leases
from services.placement.limits import Limits
from services.placement.measuring import Measuring
from services.placement.move_task import Tools
from services.placement.obligations import Obligations
from services.placement.open_moves import OpenMoves
from services.placement.opening import Sessions
from services.placement.owner import TaskOwner
from services.placement.peers import Deadlines, Peers
from services.placement.probe import Probe
from services.placement.relearning import Relearning
from services.placement.reported import Reported
from services.placement.room import RoomKeeper
from services.placement.runtime import Runtime
from services.placement.servicer import PlacementServicer
from services.placement.settings import PlacementSettings
from services.placement.steps import Steps
from services.placement.suspending import Suspensions
from services.placement.suspension_steps import SuspensionSteps
from services.placement.target_rooms import TargetRooms
from services.placement.traces import TraceServicer, TraceStore
from services.placement.verbs import Verbs
from worldline.doctor.facts import PLACEMENT
from worldline.doctor.reading import read_facts
from worldline.doctor.servicer import ProcessDoctor
from worldline.doctor.surroundings import check_writable
from worldline.errors import InvalidInput
from worldline.rpc.dialled import check_dialled
from worldline.rpc.host import announce_ready, load_settings, run_service
from worldline.rpc.server import GrpcServer
from worldline.telemetry import start
from worldline.telemetry.catalogue import LEASES, SESSIONS
from worldline.v1 import placement_pb2_grpc

SERVICE_NAME = "worldline.v1.PlacementService"


class Placement:
    """The parts of placement, put together once and taken apart once."""

    def __init__(
        self, settings: PlacementSettings, traces: TraceStore, deadlines: Deadlines | None = None
    ) -> None:
        deadlines = deadlines or Deadlines()
        self.directory = Directory(settings.directory_path)
        self.fleet = Fleet(
            node_lease_ms=settings.node_lease_ms, engine_lease_ms=settings.engine_lease_ms
        )
        self.peers = Peers(self.fleet, settings.admission_address)
        moves, owner = OpenMoves(), TaskOwner()
        self.relearning = Relearning(
            self.directory, self.fleet, self.peers, deadlines, moves, owner
        )
        asking = Asking(self.peers, deadlines, self.relearning)
        obligations = Obligations(self.fleet, self.peers, deadlines)
        room = RoomKeeper(self.directory, self.fleet, moves, self.peers, deadlines, owner)
        steps = Steps(self.directory, self.fleet, self.peers, deadlines, asking, TargetRooms(room))
        limits = Limits(rest_s=settings.rest_s)
        tools = Tools(self.directory, steps, obligations, limits)
        self.runtime = Runtime(self.directory, self.fleet, tools, moves, owner)
        self.measuring = Measuring(self.runtime, self.fleet, Probe(self.peers, deadlines, asking))
        self.sessions = Sessions(self.runtime, self.peers, obligations, deadlines, room)
        self.suspensions = Suspensions(
            self.runtime,
            self.sessions,
            SuspensionSteps(self.directory, self.fleet, self.peers, obligations, deadlines),
        )
        self.runtime.on_stop(self.suspensions.stop)
        self.drains = Drains(self.runtime, moves, settings.drain_deadline_s)
        self.runtime.on_stop(self.drains.stop)
        reported = Reported()
        self.servicer = PlacementServicer(
            self.runtime,
            self.sessions,
            Verbs(self.runtime, self.peers, deadlines),
            self.suspensions,
            Forks(self.runtime, self.sessions, self.peers, deadlines),
            Leases(
                self.runtime,
                self.sessions,
                self.suspensions,
                self.peers,
                settings.orphan_grace_ms,
                reported,
            ),
            self.drains,
            reported,
            traces,
        )

    async def start(self) -> None:
        """Open the directory and resolve what the last process left open.

        Raises:
            VersionSkew, Conflict, InvalidInput: the directory cannot be used.
        """
        await self.directory.open()
        await self.runtime.start()
        await self.sessions.start()
        await self.suspensions.start()
        await self.drains.start()

    async def stop(self, grace_s: float) -> None:
        """Moves to a safe point, then channels, then the directory."""
        await self.runtime.stop(grace_s)
        await self.peers.close()
        await self.directory.close()


async def serve(settings: PlacementSettings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set.

    Raises:
        Unavailable: an address cannot be bound. InvalidInput: one that nobody can have.
        VersionSkew, Conflict, InvalidInput: the directory cannot be used.
    """
    server = GrpcServer(reflection_enabled=settings.reflection)
    address = server.bind(settings.listen)
    check_surroundings(settings)
    traces = _open_traces(settings.traces_file())
    telemetry = start(
        "placement",
        settings.trace_store,
        log_format=settings.log_format,
        log_level=settings.log_level,
        metrics_listen=settings.metrics_listen,
        span_exporters=(traces.exporter(),),
    )
    try:
        placement = Placement(settings, traces)
        await placement.start()
        telemetry.observe(SESSIONS, placement.runtime.session_counts)
        telemetry.observe(LEASES, placement.runtime.leases)
        try:
            server.add(
                placement_pb2_grpc.add_PlacementServiceServicer_to_server,
                placement.servicer,
                SERVICE_NAME,
            )
            TraceServicer(traces).add_to(server)
            ProcessDoctor(lambda: read_facts(PLACEMENT)).add_to(server)
            FleetDoctor(
                placement.fleet,
                placement.peers,
                placement.measuring,
                own_address=address,
                admission_address=settings.admission_address,
            ).add_to(server)
            await server.start()
            announce_ready(settings, settings.advertise or address, telemetry.metrics_address)
            await stop.wait()
        finally:
            # Moves first: their peers may still ask us for the truth meanwhile.
            await placement.runtime.stop(settings.grace_s)
            await server.stop(settings.grace_s)
            await placement.stop(0.0)
    finally:
        telemetry.shutdown(settings.flush_s)
        traces.close()


def check_surroundings(settings: PlacementSettings) -> None:
    """Refuse what cannot work, before anything is built on it.

    Raises:
        InvalidInput: an address that nobody can have.
        Unavailable: the directory's file cannot be made.
    """
    check_dialled(admission_address=settings.admission_address, trace_store=settings.trace_store)
    beside = Path(settings.directory_path).absolute().parent
    check_writable(beside, "directory_path", reason="DIRECTORY_UNUSABLE")


def _open_traces(path: str) -> TraceStore:
    try:
        return TraceStore(path)
    except sqlite3.Error as error:
        raise InvalidInput(
            f"cannot open the trace store {path}: {error}", field="traces_path"
        ) from error


def main() -> None:
    """Entry point."""
    run_service(load_settings(PlacementSettings), serve)
