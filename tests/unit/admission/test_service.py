"""The service over real gRPC: tickets that verify, typed refusals, pacing, reaping, shutdown."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from services.admission import runtime as runtime_module
from services.admission.holds import Hold
from services.admission.main import serve
from services.admission.policy import Policy
from services.admission.runtime import AdmissionRuntime
from services.admission.settings import AdmissionSettings
from worldline.errors import CapacityExhausted, InvalidInput, TicketRefused, Unavailable
from worldline.rpc.channel import call, open_channel
from worldline.ticket import TicketSigner, TicketVerifier, ticket_from_proto
from worldline.v1 import admission_pb2, admission_pb2_grpc, move_pb2
from worldline.verdict import RejectReason, verdict_from_proto

from .builders import probe
from .test_parse import finish_message, move_message, session_message

DEADLINE_S = 60.0


@asynccontextmanager
async def running(**changes: Any) -> AsyncIterator[admission_pb2_grpc.AdmissionServiceStub]:
    """The whole service in this loop; ends with it gone."""
    read_fd, write_fd = os.pipe()
    values: dict[str, Any] = {"ready_fd": write_fd, "grace_s": 0.1, "relearn": False} | changes
    settings = AdmissionSettings(**values)
    stop = asyncio.Event()
    serving = asyncio.ensure_future(serve(settings, stop))
    try:
        with os.fdopen(read_fd) as ready:
            async with asyncio.timeout(DEADLINE_S):
                line = await asyncio.to_thread(ready.readline)
        channel = open_channel(json.loads(line)["address"])
        try:
            yield admission_pb2_grpc.AdmissionServiceStub(channel)
        finally:
            await channel.close()
    finally:
        stop.set()
        async with asyncio.timeout(DEADLINE_S):
            await serving


async def _admit(
    stub: admission_pb2_grpc.AdmissionServiceStub,
    request: admission_pb2.AdmitMoveRequest,
    client_id: str = "",
) -> admission_pb2.AdmitMoveResponse:
    metadata = (("worldline-client-id", client_id),) if client_id else None
    answer: admission_pb2.AdmitMoveResponse = await call(
        stub.AdmitMove, request, timeout_s=DEADLINE_S, metadata=metadata
    )
    return answer


def _probe_message(number: int = 1) -> admission_pb2.AdmitMoveRequest:
    return move_message(
        move_id=f"probe-{number}", session_id="", purpose=move_pb2.MOVE_PURPOSE_PROBE
    )


async def test_probe_then_move_then_describe() -> None:
    async with running() as stub:
        first = await _admit(stub, move_message())
        assert verdict_from_proto(first.verdict).reason is RejectReason.PATH_UNMEASURED
        assert not first.HasField("ticket")

        await _admit(stub, _probe_message())
        finish = finish_message(move_id="probe-1", ticket_id="")
        await call(stub.FinishMove, finish, timeout_s=DEADLINE_S)

        second = await _admit(stub, move_message())
        verdict = verdict_from_proto(second.verdict)
        assert verdict.admitted, verdict.explanation
        described: admission_pb2.DescribeAdmissionResponse = await call(
            stub.DescribeAdmission, admission_pb2.DescribeAdmissionRequest(), timeout_s=DEADLINE_S
        )
        assert [hold.move_id for hold in described.holds] == ["move-1"]
        assert described.holds[0].remaining_ms > 0
        assert [(path.source_node_id, path.samples) for path in described.paths] == [("a", 1)]
        assert described.paths[0].rate_bytes_per_s == pytest.approx(1.59e10, rel=0.01)
        assert dict(described.verdicts) == {"admitted": 2, "PATH_UNMEASURED": 1}
        assert described.census.counts["holds"] == 1


async def test_a_ticket_verifies_with_the_key_that_the_service_tells() -> None:
    async with running() as stub:
        loop = asyncio.get_running_loop()
        asked_ms = loop.time() * 1e3
        key: admission_pb2.GetTicketKeyResponse = await call(
            stub.GetTicketKey, admission_pb2.GetTicketKeyRequest(), timeout_s=DEADLINE_S
        )
        verifier = TicketVerifier.learn(
            key.key_id,
            key.public_key,
            admission_now_ms=key.now_ms,
            asked_at_ms=asked_ms,
            answered_at_ms=loop.time() * 1e3,
        )
        ticket = ticket_from_proto((await _admit(stub, _probe_message())).ticket)
        claims = verifier.verify(ticket, loop.time() * 1e3)
        assert claims.move_id == "probe-1"
        with pytest.raises(TicketRefused) as caught:
            verifier.verify(ticket, loop.time() * 1e3 + claims.valid_for_ms)
        assert caught.value.reason == "TICKET_EXPIRED"


async def test_the_same_move_gets_the_same_ticket() -> None:
    async with running() as stub:
        assert await _admit(stub, _probe_message()) == await _admit(stub, _probe_message())


async def test_a_session_is_admitted() -> None:
    async with running() as stub:
        answer: admission_pb2.AdmitSessionResponse = await call(
            stub.AdmitSession, session_message(), timeout_s=DEADLINE_S
        )
        assert verdict_from_proto(answer.verdict).admitted


async def test_what_does_not_parse_names_its_field() -> None:
    async with running() as stub:
        with pytest.raises(InvalidInput) as caught:
            await _admit(stub, move_message(source_node_id="b"))
        assert (caught.value.field, caught.value.reason) == ("targets.node_id", "MOVE_TO_ITSELF")
        with pytest.raises(InvalidInput) as caught:
            await _admit(stub, move_message(), client_id="two words")
        assert caught.value.field == "worldline-client-id"


async def test_a_flood_is_paced_by_client_and_may_still_give_back() -> None:
    async with running(client_rate_per_s=2, client_wait_max_s=0) as stub:
        for _ in range(2):
            await _admit(stub, _probe_message(), client_id="flood")
        with pytest.raises(CapacityExhausted) as caught:
            await _admit(stub, _probe_message(), client_id="flood")
        assert caught.value.reason == "PACED"
        assert caught.value.retry_after_ms == 1_000
        await _admit(stub, _probe_message(), client_id="other")
        named = _probe_message()
        named.client_id = "flood"  # the request's own word goes before the metadata's
        with pytest.raises(CapacityExhausted):
            await _admit(stub, named, client_id="other")
        for _ in range(5):
            finish = finish_message(move_id="probe-1", ticket_id="")
            await call(stub.FinishMove, finish, timeout_s=DEADLINE_S)


async def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unavailable, match=listen) as caught:
            await serve(AdmissionSettings(listen=listen), asyncio.Event())
        assert caught.value.field == "listen"


async def test_the_process_stops_on_sigterm_and_leaves_nothing() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.admission.main",
        "--ready-fd=1",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        if process.stdout is None:
            raise AssertionError("no pipe")
        async with asyncio.timeout(60):
            address = json.loads(await process.stdout.readline())["address"]
            process.terminate()
            assert await process.wait() == 0
        host, _, port = address.rpartition(":")
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind((host, int(port)))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_the_reaper_wakes_by_itself_at_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy(valid_for_ms=20, lease_min_ms=20, lease_max_ms=20)
    runtime = AdmissionRuntime(policy, TicketSigner.generate())
    expire, reaped = runtime.core.expire, asyncio.Event()

    def watched(now_s: float) -> list[Hold]:
        ended = expire(now_s)
        if ended:
            reaped.set()
        return ended

    monkeypatch.setattr(runtime.core, "expire", watched)
    monkeypatch.setattr(runtime_module, "REAP_INTERVAL_MAX_S", 10 * DEADLINE_S)
    reaper = asyncio.ensure_future(runtime.reap())
    await asyncio.sleep(0)  # the reaper waits with nothing held, and must be woken by the hold
    try:
        assert runtime.admit_move(probe())[0].verdict.admitted
        async with asyncio.timeout(DEADLINE_S):
            await reaped.wait()
        assert len(runtime.core.holds) == 0
    finally:
        reaper.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reaper
