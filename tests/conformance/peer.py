"""A UCX peer in a process of its own, for tests that kill it. Not a test itself.

Reads one line: its peer's address. Then posts what its argument says, prints `posted`, and waits.
"""

from __future__ import annotations

import asyncio
import sys

from services.mover.transport.ucx import UcxTransport

TAG = 7 << 40
SIZE = 4 << 20
COUNT = 8


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def run(role: str) -> None:
    transport = UcxTransport()
    await transport.start()
    say(transport.address.hex())
    line = await asyncio.to_thread(sys.stdin.readline)
    endpoint = await transport.connect(bytes.fromhex(line))
    buffers = [bytearray(SIZE) for _ in range(COUNT)]
    if role == "receiver":
        requests = [endpoint.receive(memoryview(b), TAG + i) for i, b in enumerate(buffers[:2])]
    else:
        requests = [endpoint.send(memoryview(b), TAG + i) for i, b in enumerate(buffers[:2])]
    for request in requests:
        await request.wait()
    say("posted")
    await asyncio.Event().wait()


asyncio.run(run(sys.argv[1]))
