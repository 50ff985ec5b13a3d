"""A UCX peer in a process of its own, for tests that kill it. Not a test itself.

    python peer.py ROLE LANE

Reads one line: its peer's address. Then posts what its role says, from memory that a neighbour may
map, prints `posted`, and waits.
"""

from __future__ import annotations

import asyncio
import sys

from services.mover.memory.host import HostMemory
from services.mover.transport.lanes import Lane
from services.mover.transport.ucx import UcxTransport

TAG = 7 << 40
SIZE = 4 << 20
COUNT = 8


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def run(role: str, lane: str) -> None:
    transport = UcxTransport(lane=Lane(lane))
    await transport.start()
    memory = HostMemory("peer", COUNT * SIZE)
    memory.prepare(COUNT * SIZE, zero=False)
    await transport.register(memory.whole, memory.descriptor)
    say(transport.address.hex())
    line = await asyncio.to_thread(sys.stdin.readline)
    endpoint = await transport.connect(bytes.fromhex(line))
    post = endpoint.receive if role == "receiver" else endpoint.send
    requests = [post(memory.part(i * SIZE, SIZE), TAG + i) for i in range(2)]
    for request in requests:
        await request.wait()
    say("posted")
    await asyncio.Event().wait()


asyncio.run(run(*sys.argv[1:]))
