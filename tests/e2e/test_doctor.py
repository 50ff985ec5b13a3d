"""The doctor on a real cluster: every process, the lanes as UCX chose them, and their rates."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.e2e.conftest import PATIENT, ROOT
from tests.e2e.older_mover import OLDER_VERSION
from tests.oracles import bounded, until
from worldline.cli import doctor_ask
from worldline.cli.app import app
from worldline.cli.cluster import LocalCluster
from worldline.cli.parts import Addresses
from worldline.cli.process import ServiceProcess
from worldline.contract import contract_to_proto
from worldline.doctor.examination import Examination, Part, judge
from worldline.doctor.facts import ADMISSION, ENGINE, MOVER, PLACEMENT
from worldline.errors import InvalidInput, NotFound, Unavailable, VersionSkew, WorldlineError
from worldline.rpc.channel import PROTOCOL_VERSION, call, mapped_errors, open_channel
from worldline.state.digest import GRANULE_BYTES
from worldline.state.layout import flat_layout
from worldline.state.manifest import CRC64NVME
from worldline.v1 import (
    admission_pb2,
    admission_pb2_grpc,
    doctor_pb2,
    doctor_pb2_grpc,
    move_pb2,
    mover_pb2,
    mover_pb2_grpc,
)

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

MIB = 1 << 20
CALL_S = 60.0


async def examined(cluster: LocalCluster, answer_s: float = 30.0) -> Examination:
    async with bounded(), open_channel(cluster.placement_address) as channel:
        return Examination(tuple([one async for one in doctor_ask.fleet(channel, answer_s)]))


async def measured(
    cluster: LocalCluster, source: str, target: str, push_bytes_max: int = 8 * MIB
) -> doctor_pb2.MeasurePathResponse:
    async with open_channel(cluster.placement_address) as channel:
        request = doctor_pb2.MeasurePathRequest(
            source_node_id=source, target_node_id=target, push_bytes_max=push_bytes_max
        )
        stub = doctor_pb2_grpc.FleetDoctorServiceStub(channel)
        answer: doctor_pb2.MeasurePathResponse = await call(
            stub.MeasurePath, request, timeout_s=CALL_S
        )
        return answer


async def paths_known(cluster: LocalCluster) -> dict[tuple[str, str], int]:
    """Samples of every path that admission knows."""
    async with open_channel(cluster.admission_address) as channel:
        stub = admission_pb2_grpc.AdmissionServiceStub(channel)
        request = admission_pb2.DescribeAdmissionRequest()
        answer = await call(stub.DescribeAdmission, request, timeout_s=CALL_S)
    return {(path.source_node_id, path.target_node_id): path.samples for path in answer.paths}


async def held(cluster: LocalCluster) -> list[str]:
    """What a measurement may not leave behind: slots, reservations, wires, holds."""
    complaints: list[str] = []
    for node_id in ("node-1", "node-2"):
        async with open_channel(cluster.services[f"mover-{node_id}"].address) as channel:
            stub = mover_pb2_grpc.MoverServiceStub(channel)
            answer = await call(
                stub.DescribeMover, mover_pb2.DescribeMoverRequest(), timeout_s=CALL_S
            )
        complaints += [f"{node_id}: {slot}" for slot in answer.slots if slot.session_id]
        complaints += [*answer.reservations, *(wire.move_id for wire in answer.wires)]
    async with open_channel(cluster.admission_address) as channel:
        stub = admission_pb2_grpc.AdmissionServiceStub(channel)
        described = await call(
            stub.DescribeAdmission, admission_pb2.DescribeAdmissionRequest(), timeout_s=CALL_S
        )
    return complaints + [hold.move_id for hold in described.holds]


async def test_every_process_answers_for_itself(cluster: LocalCluster) -> None:
    found = await examined(cluster)
    services = sorted((one.service, one.node_id) for one in found.processes)
    nodes = ("node-1", "node-2")
    assert services == sorted(
        [(PLACEMENT, ""), (ADMISSION, ""), *((kind, n) for kind in (MOVER, ENGINE) for n in nodes)]
    )
    by_pid = {each.pid: name for name, each in cluster.services.items()}
    for one in found.processes:
        assert one.facts is not None, one
        assert one.clock is not None
        # One machine, one clock: it is off by no more than is said, and nobody knows how much.
        assert abs(one.clock.offset_ms) <= one.clock.uncertainty_ms
        assert by_pid[one.facts.pid].startswith(one.service)
    mover = found.mover("node-2")
    assert mover is not None
    assert "tcp/lo" in mover.lanes_here
    parts = {Part.VERSIONS, Part.PROCESSES, Part.UCX, Part.DEVICES, Part.CLOCKS}
    assert judge(found, parts) == ()


async def test_a_path_is_measured_as_moves_go_and_leaves_nothing(cluster: LocalCluster) -> None:
    before = await paths_known(cluster)
    answer = await measured(cluster, "node-1", "node-2")
    assert not answer.HasField("refused"), answer.refused
    lanes = {lane for push in answer.pushes for lane in push.lanes}
    # A probe's bytes rest in no slot: nobody may read them in place.
    assert lanes == {"posix/memory"}
    sizes = [push.wire_bytes for push in answer.pushes]
    assert sizes[:4] == [4096, 4096, 4096, MIB]
    assert set(sizes[4:]) <= {size * MIB for size in range(4, 9)}
    assert all(push.wire_ms > 0 for push in answer.pushes)
    after = await paths_known(cluster)
    path = "node-1", "node-2"
    # Admission learns from those that say something about the rate.
    assert after[path] == before.get(path, 0) + len(sizes) - 3
    tiny = await measured(cluster, "node-1", "node-2", 1)
    assert [push.wire_bytes for push in tiny.pushes] == [1] * 4
    assert await paths_known(cluster) == after
    await until(lambda: held(cluster))


async def test_a_wire_that_a_move_has_is_left_to_it(cluster: LocalCluster) -> None:
    """Admitted like any bulk: whoever holds the wire or waits for it comes first."""
    await measured(cluster, "node-1", "node-2")  # admits no move on a path that nobody measured
    layout = flat_layout("state", MIB)
    async with open_channel(cluster.admission_address) as channel:
        stub = admission_pb2_grpc.AdmissionServiceStub(channel)
        request = admission_pb2.AdmitMoveRequest(
            move_id="m-doctor",
            session_id="s-doctor",
            epoch=1,
            contract=contract_to_proto(PATIENT),
            source_node_id="node-1",
            targets=[admission_pb2.MoveTarget(node_id="node-2", slots_free=1)],
            extent_bytes=layout.extent_bytes,
            topology_hash=layout.topology_hash,
            purpose=move_pb2.MOVE_PURPOSE_SESSION,
        )
        admitted = await call(stub.AdmitMove, request, timeout_s=CALL_S)
        assert admitted.verdict.admitted, admitted.verdict
        claims = move_pb2.TicketClaims.FromString(admitted.ticket.claims)
        try:
            answer = await measured(cluster, "node-1", "node-2")
            assert [*answer.pushes] == []
            assert not answer.refused.admitted
            assert answer.refused.explanation
            async with open_channel(cluster.placement_address) as placement:
                path = await doctor_ask.path(placement, "node-1", "node-2", MIB)
            (finding,) = judge(Examination((), (path,)))
            assert finding.code == "PATH_NOT_MEASURED"
            assert finding.severity == 0
        finally:
            finish = admission_pb2.FinishMoveRequest(
                ticket_id=claims.ticket_id, move_id=claims.move_id, reason="TEST"
            )
            await call(stub.FinishMove, finish, timeout_s=CALL_S)
    again = await measured(cluster, "node-1", "node-2", MIB)
    assert not again.HasField("refused")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"protocol_version": 999}, VersionSkew),
        ({"algorithm": "crc32c"}, InvalidInput),
        ({"granule_bytes": GRANULE_BYTES // 2}, InvalidInput),
    ],
)
async def test_skew_is_refused_before_a_byte_moves(
    cluster: LocalCluster, change: dict[str, Any], error: type[WorldlineError]
) -> None:
    """Fault 36, at the receiver: before the ticket is looked at, or anything is taken."""
    offer = mover_pb2.LandOffer(
        protocol_version=PROTOCOL_VERSION, algorithm=CRC64NVME, granule_bytes=GRANULE_BYTES
    )
    (name,) = change
    setattr(offer, name, change[name])
    async with bounded(), open_channel(cluster.services["mover-node-2"].address) as channel:
        stream = mover_pb2_grpc.MoverServiceStub(channel).Land(timeout=CALL_S)
        with pytest.raises(error) as caught:
            async with mapped_errors():
                await stream.write(mover_pb2.LandRequest(offer=offer))
                await stream.read()
    assert caught.value.field == name
    assert await held(cluster) == []


async def test_a_mover_of_another_release_does_not_join(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Fault 36, at the directory: it ends, and says with which version and why."""
    addresses = Addresses(cluster.placement_address, cluster.admission_address)
    spec = replace(
        cluster.options.mover_spec(addresses, "node-3", tmp_path),
        entry="tests.e2e.older_mover:main",
        env={"PYTHONPATH": str(ROOT)},
    )
    process = await ServiceProcess.start(spec, tmp_path / "older.log")
    try:
        with pytest.raises(Unavailable) as caught:
            await process.ready(CALL_S)
        assert process.status == 1
    finally:
        await process.kill()
        process.close()
    assert "VERSION_SKEW" in caught.value.message
    assert str(OLDER_VERSION) in caught.value.message
    assert {one.node_id for one in (await examined(cluster)).processes} == {"", "node-1", "node-2"}


async def test_paths_that_are_none(cluster: LocalCluster) -> None:
    with pytest.raises(InvalidInput) as caught:
        await measured(cluster, "node-1", "node-1")
    assert caught.value.field == "target_node_id"
    with pytest.raises(NotFound) as unknown:
        await measured(cluster, "node-1", "node-9")
    assert unknown.value.field == "target_node_id"


async def test_who_is_stopped_is_a_finding_and_the_others_are_examined(
    cluster: LocalCluster,
) -> None:
    cluster.signal("engine-node-2", signal.SIGSTOP)
    try:
        found = await examined(cluster, answer_s=30.0)
    finally:
        cluster.signal("engine-node-2", signal.SIGCONT)
    silent = [one for one in found.processes if one.facts is None]
    assert [(one.service, one.node_id) for one in silent] == [(ENGINE, "node-2")]
    findings = judge(found, {Part.PROCESSES})
    assert [(one.code, one.subject) for one in findings] == [
        ("NO_ANSWER", f"engine {silent[0].instance}")
    ]


async def test_the_command_on_a_fleet(cluster: LocalCluster) -> None:
    """In a thread of its own, as a shell's process would be: it has its own event loop."""
    import asyncio

    arguments = ["doctor", "--placement", cluster.placement_address, "--json", "--push", "4MiB"]
    arguments += ["--patience", "60s"]
    parts = ["--only", "versions,processes,ucx,devices,lanes"]

    async def complaints() -> list[str]:  # the engine that was stopped comes back
        found = await examined(cluster)
        return [one.subject for one in found.processes if one.facts is None]

    await until(complaints)
    result = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, *parts])
    written: dict[str, Any] = json.loads(result.stdout)
    assert written["scope"] == "fleet"
    assert all(one["answered"] for one in written["processes"])
    pairs = {(one["source_node_id"], one["target_node_id"]) for one in written["paths"]}
    assert pairs == {("node-1", "node-2"), ("node-2", "node-1")}
    for path in written["paths"]:
        assert path["lanes"] == ["posix/memory"]
        assert path["rate_bytes_per_s"] > 0
        assert path["latency_ms"] > 0
    # How fast two paths of a busy machine are is its own affair; nothing else may be wrong.
    assert {one["code"] for one in written["findings"]} <= {"LANE_SLOW"}
    warned = any(one["severity"] == "WARNING" for one in written["findings"])
    assert result.exit_code == int(warned)
    assert "node-1 to node-2" in result.stderr
    assert await held(cluster) == []
