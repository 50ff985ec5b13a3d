"""Servicer: a process tells what it finds around itself, to whoever asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from worldline.doctor.codec import facts_to_proto
from worldline.doctor.facts import ProcessFacts
from worldline.rpc.server import GrpcServer
from worldline.v1 import doctor_pb2, doctor_pb2_grpc

SERVICE_NAME = doctor_pb2.DESCRIPTOR.services_by_name["ProcessDoctorService"].full_name


class ProcessDoctor(doctor_pb2_grpc.ProcessDoctorServiceServicer):
    """ProcessDoctorService over a reader of facts, which may take some milliseconds."""

    def __init__(self, read: Callable[[], ProcessFacts]) -> None:
        """`read` is called anew for each question, on a thread."""
        self._read = read

    def add_to(self, server: GrpcServer) -> None:
        """Serve it beside the process's own service."""
        register = doctor_pb2_grpc.add_ProcessDoctorServiceServicer_to_server
        server.add(register, self, SERVICE_NAME)

    async def Examine(  # noqa: N802
        self, request: doctor_pb2.ExamineRequest, context: Any
    ) -> doctor_pb2.ExamineResponse:
        """Its facts, and what its clock says."""
        if request.clock_only:
            return doctor_pb2.ExamineResponse(unix_time_ns=time.time_ns())
        facts = facts_to_proto(await asyncio.to_thread(self._read))
        return doctor_pb2.ExamineResponse(facts=facts, unix_time_ns=time.time_ns())
