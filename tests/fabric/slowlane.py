"""Slow lane: a whole control plane in a fabric, examined by the doctor as an operator would.

It runs inside the fabric's driver namespace, as `python -m tests.fabric.slowlane FABRIC RESULT`,
both of them JSON files. What it starts dies with it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.fabric.namespaces import Fabric, Node, Port
from tests.fabric.services import CALL_S, START_S, STOP_S, services_of
from worldline.cli.process import ServiceProcess, ServiceSpec
from worldline.rpc.channel import call, open_channel
from worldline.v1 import admission_pb2, admission_pb2_grpc

_DOCTOR_S = 120.0


def fabric_from_json(written: dict[str, Any]) -> Fabric:
    nodes = {name: Node(**node) for name, node in written["nodes"].items()}
    return Fabric(nodes, Node(**written["driver"]), Port(**written["port"]))


async def examine(fabric: Fabric, directory: Path) -> dict[str, Any]:
    """The doctor's document and exit status, and what admission has learned of each path."""
    listen = f"{fabric.driver.control_ip}:0"
    async with (
        _service("admission", directory, listen=listen) as admission,
        _service(
            "placement",
            directory,
            listen=listen,
            admission_address=admission,
            directory_path=str(directory / "directory.sqlite"),
        ) as placement,
        services_of(
            fabric,
            directory,
            slot_count=2,
            slot_bytes=16 << 20,
            admission_address=admission,
            mover={"placement_address": placement, "register_within_s": "120"},
        ),
    ):
        status, document = await _doctor(placement)
        return {"status": status, "document": document, "rates": await _rates(admission)}


@asynccontextmanager
async def _service(name: str, directory: Path, **variables: str) -> AsyncIterator[str]:
    spec = ServiceSpec(
        name=name,
        service=name,
        entry=f"services.{name}.main:main",
        variables={"log_level": "warning", **variables},
    )
    process = await ServiceProcess.start(spec, directory / f"{name}.log")
    try:
        yield await process.ready(START_S)
    finally:
        await process.stop(STOP_S)
        process.close()


async def _doctor(placement: str) -> tuple[int, dict[str, Any]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "worldline.cli.main", "doctor", "--json", "--placement", placement),
        *("--only", "lanes", "--patience", "30s"),
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(_DOCTOR_S):
        said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, json.loads(said)


async def _rates(admission: str) -> dict[str, float]:
    async with open_channel(admission) as channel:
        stub = admission_pb2_grpc.AdmissionServiceStub(channel)
        request = admission_pb2.DescribeAdmissionRequest()
        answer = await call(stub.DescribeAdmission, request, timeout_s=CALL_S)
    return {
        f"{path.source_node_id} to {path.target_node_id}": path.rate_bytes_per_s
        for path in answer.paths
    }


def main() -> None:
    fabric_path, result_path = map(Path, sys.argv[1:])
    fabric = fabric_from_json(json.loads(fabric_path.read_text()))
    with tempfile.TemporaryDirectory(prefix="worldline-fabric-") as directory:
        found = asyncio.run(examine(fabric, Path(directory)))
    result_path.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
