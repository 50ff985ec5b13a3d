"""Asking: one process, a whole fleet, one path; what comes back is parsed here, once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf import json_format

from worldline.doctor.clock import Offset
from worldline.doctor.codec import facts_from_proto
from worldline.doctor.examination import Examined
from worldline.doctor.facts import MOVER
from worldline.doctor.lanecheck import Path, Push
from worldline.errors import WorldlineError
from worldline.rpc.channel import call, mapped_errors
from worldline.v1 import doctor_pb2, doctor_pb2_grpc
from worldline.verdict import verdict_from_proto

#: How long one process may take to answer, and what the answer itself may take on top.
ANSWER_S, SLACK_S = 3.0, 10.0
#: Of one path: pushes go on for so long; one that is under way may take longer.
MEASURE_S, MEASURE_SLACK_S = 2.0, 30.0
#: Loading UCX and torch on a busy machine.
HERE_S = 60.0
_HERE = "from services.mover.selftest import main; main()"


async def fleet(channel: grpc.aio.Channel, answer_s: float = ANSWER_S) -> AsyncIterator[Examined]:
    """Every process that placement knows, as they answer, each within `answer_s`.

    Raises:
        WorldlineError: placement itself failed.
    """
    stub = doctor_pb2_grpc.FleetDoctorServiceStub(channel)
    request = doctor_pb2.ExamineFleetRequest(within_ms=max(1, round(answer_s * 1e3)))
    async with mapped_errors():
        async for answer in stub.ExamineFleet(request, timeout=answer_s + SLACK_S):
            yield _examined(answer)


async def path(channel: grpc.aio.Channel, source: str, target: str, push_bytes_max: int) -> Path:
    """Measured now; one that could not be says why."""
    stub = doctor_pb2_grpc.FleetDoctorServiceStub(channel)
    request = doctor_pb2.MeasurePathRequest(
        source_node_id=source,
        target_node_id=target,
        push_bytes_max=push_bytes_max,
        within_ms=round(MEASURE_S * 1e3),
    )
    try:
        answer = await call(stub.MeasurePath, request, timeout_s=MEASURE_S + MEASURE_SLACK_S)
    except WorldlineError as error:
        return Path(source, target, failed=f"{error.reason}: {error.message}")
    refused = ""
    if answer.HasField("refused"):
        verdict = verdict_from_proto(answer.refused)
        refused = f"{verdict.label}: {verdict.explanation}"
    return Path(
        source,
        target,
        lanes=tuple(answer.pushes[-1].lanes) if answer.pushes else (),
        pushes=tuple(Push(push.wire_bytes, push.wire_ms) for push in answer.pushes),
        refused=refused,
        source_device=answer.source_device,
        target_device=answer.target_device,
    )


async def here() -> Examined:
    """What a mover would find on this node, with the variables of this process.

    In a process of its own: UCX may not survive what it finds.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _HERE,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(os.environ),
    )
    try:
        async with asyncio.timeout(HERE_S):
            said, logged = await process.communicate()
    except TimeoutError:
        return _unsaid("DEADLINE_EXCEEDED", f"no answer within {HERE_S:g} s")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return _heard(said, logged, process.returncode or 0)


def _heard(said: bytes, logged: bytes, status: int) -> Examined:
    """The child's lines: its facts, then why it would not start, if it would not."""
    lines = said.decode(errors="replace").splitlines()
    if not lines:
        last = logged.decode(errors="replace").strip().splitlines()[-1:]
        because = f": {last[0]}" if last else ""
        return _unsaid("SELF_TEST_FAILED", f"the self-test ended with status {status}{because}")
    message = json_format.Parse(lines[0], doctor_pb2.ProcessFacts())
    facts = facts_from_proto(message)
    if status < 0:
        return Examined(
            MOVER,
            facts.instance,
            facts.node_id,
            facts=facts,
            reason="UCX_CRASHED",
            message=f"UCX ended the process with signal {-status} when it started",
        )
    failure: dict[str, Any] = json.loads(lines[1]) if len(lines) > 1 else {}
    return Examined(
        MOVER,
        facts.instance,
        facts.node_id,
        facts=facts,
        reason=str(failure.get("reason", "")),
        message=str(failure.get("message", "")),
        field=str(failure.get("field", "")),
    )


def _unsaid(reason: str, message: str) -> Examined:
    return Examined(MOVER, "here", reason=reason, message=message)


def _examined(answer: doctor_pb2.ExamineFleetResponse) -> Examined:
    told = answer.HasField("facts")
    clocked = told and answer.clock_uncertainty_ms > 0
    return Examined(
        service=answer.service,
        instance=answer.instance,
        node_id=answer.node_id,
        address=answer.address,
        facts=facts_from_proto(answer.facts) if told else None,
        clock=Offset(answer.clock_offset_ms, answer.clock_uncertainty_ms) if clocked else None,
        reason="" if told else answer.failure.reason or "NO_ANSWER",
        message="" if told else answer.failure.message,
    )
