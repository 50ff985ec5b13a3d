"""Wire: the engine's side of a node's network interface, made slow and fast again.

A bridge of one machine carries a small world in a millisecond: who wants to cut a move in its
middle makes the wire slow first, and then sees the move stand in its push.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fleet import Fleet, digits, run

from worldline.errors import Unavailable

_INTERFACES = Path("/sys/class/net")
_COMMAND_S = 20.0


def why_not() -> str | None:
    """Why wires cannot be made slow here; None where they can."""
    if shutil.which("tc") is None:
        return "tc is not found; install iproute2"
    if os.geteuid() != 0:
        return "shaping a network interface takes root"
    return None


async def slow_down(fleet: Fleet, node: str, rate_bits_per_s: int) -> None:
    """Let no more than that into the node.

    Raises:
        Unavailable: the node's interface does not end on this machine, or tc failed.
    """
    index = digits(await fleet.execute(node, "cat", "/sys/class/net/eth0/iflink"))
    shape = ("rate", f"{rate_bits_per_s}bit", "burst", "32kb", "latency", "400ms")
    command = ("tc", "qdisc", "replace", "dev", _interface(index, node), "root", "tbf", *shape)
    await run(command, os.environ, _COMMAND_S)


def _interface(index: int, node: str) -> str:
    for interface in _INTERFACES.iterdir():
        if digits((interface / "ifindex").read_text()) == index:
            return interface.name
    raise Unavailable(
        f"{node}'s interface does not end on this machine: the engine runs elsewhere, and its "
        "wires cannot be made slow from here",
        reason="NO_WIRE",
    )
