"""Trivial programs that stand in for services: ready at once, unless told otherwise."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading


def _variable(name: str) -> str:
    """A setting of this child, whatever its service."""
    found = [value for key, value in os.environ.items() if key.endswith(f"_{name}")]
    return found[0] if found else ""


def _serve() -> None:
    ends = (signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    with os.fdopen(int(_variable("READY_FD")), "w") as ready:
        ready.write(json.dumps({"address": address, "pid": os.getpid()}) + "\n")
    signal.sigtimedwait(ends, 100)
    order = os.environ.get("CHILDREN_ORDER_FILE")
    if order:
        with open(order, "a") as stream:
            stream.write(_variable("NODE_ID") + ":" + os.environ.get("CHILD_KIND", "") + "\n")


def admission() -> None:
    os.environ["CHILD_KIND"] = "admission"
    _serve()


def placement() -> None:
    os.environ["CHILD_KIND"] = "placement"
    _serve()


def mover() -> None:
    os.environ["CHILD_KIND"] = "mover"
    _serve()


def engine() -> None:
    os.environ["CHILD_KIND"] = "engine"
    _serve()


def dies() -> None:
    sys.stderr.write("worldline: NO_DEVICE (device): there is no such device\n")
    raise SystemExit(1)


def dies_silently() -> None:
    raise SystemExit(3)


def never_ready() -> None:
    signal.pause()


def port_taken() -> None:
    sys.stderr.write("worldline: LISTEN_FAILED (listen): cannot listen\n")
    raise SystemExit(1)


def ignores_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with os.fdopen(int(_variable("READY_FD")), "w") as ready:
        ready.write(json.dumps({"address": "127.0.0.1:1", "pid": os.getpid()}) + "\n")
    threading.Event().wait(60)
