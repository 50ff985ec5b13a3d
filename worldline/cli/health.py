"""Health: whether a service serves, for container engines and scripts; imports next to nothing."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence

from grpc_health.v1 import health_pb2, health_pb2_grpc

from worldline.cli.main import INTERRUPTED
from worldline.errors import DeadlineExceeded, InvalidInput, Unavailable, WorldlineError
from worldline.hostport import dialled
from worldline.rpc.channel import call, open_channel

_TIMEOUT_S = 5.0
_EPILOG = """\
Asks the standard gRPC health service (grpc.health.v1), which every service of Worldline has.
SERVICE is a full name, worldline.v1.MoverService and the like; without one the process is meant.

examples:
  worldline-health 127.0.0.1:7400
  worldline-health [::1]:7402 --service worldline.v1.MoverService --timeout 2

exit status:
  0 it serves   1 it answers, and does not serve   2 wrong command line
  4 it has no such service   5 it cannot be reached, or did not answer in time   130 interrupted
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `worldline-health`; exits with the status."""
    given = _parser().parse_args(arguments)
    try:
        status = asyncio.run(ask(given.address, given.service, given.timeout))
    except WorldlineError as error:
        said = error.message.removeprefix(f"{error.reason}: ") or f"it has no {given.service}"
        sys.stderr.write(f"worldline-health: {given.address}: {error.reason}: {said}\n")
        sys.exit(_exit_status(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    answer = {"address": given.address, "service": given.service, "status": status}
    try:
        print(json.dumps(answer) if given.as_json else status, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing is left to be flushed at the end
        sys.stderr.write(f"worldline-health: OUTPUT_FAILED: {error}\n")
        sys.exit(1)
    sys.exit(0 if status == "SERVING" else 1)


async def ask(address: str, service: str, timeout_s: float) -> str:
    """SERVING, NOT_SERVING or UNKNOWN, as the service at `address` says of itself.

    Raises:
        InvalidInput: `address` cannot be dialled.
        Unavailable: nobody answers there. DeadlineExceeded: not within `timeout_s`.
        WorldlineError: NOT_FOUND, the process has no such service.
    """
    dialled(address, "address")
    try:
        request = health_pb2.HealthCheckRequest(service=service)
    except ValueError:  # bytes of the command line that are no UTF-8
        raise InvalidInput(f"no service is called {service!r}", field="service") from None
    async with open_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        response = await call(stub.Check, request, timeout_s=timeout_s)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="worldline-health",
        description="Whether a service serves.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("address", metavar="HOST:PORT", help="where it listens")
    parser.add_argument("--service", default="", help="full proto name; default: the process")
    parser.add_argument(
        "--timeout", type=_seconds, default=_TIMEOUT_S, metavar="SECONDS", help="default: 5"
    )
    parser.add_argument("--json", action="store_true", dest="as_json", help="one JSON object")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 3_600:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 3600, got {text}")
    return value


def _exit_status(error: WorldlineError) -> int:
    if isinstance(error, InvalidInput):
        return 2
    if isinstance(error, Unavailable | DeadlineExceeded):
        return 5
    return 4 if error.reason == "NOT_FOUND" else 1


if __name__ == "__main__":
    main()
