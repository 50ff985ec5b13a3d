"""Close after the last send, while the receiver reads nothing: the flush is what saves the tail."""

from __future__ import annotations

import asyncio
import threading

from services.mover.transport.ucx import UcxTransport

TAG = 7 << 40


async def test_a_receiver_that_lags_loses_nothing_to_a_close() -> None:
    """Fault 15. Small messages count as sent once UCX has buffered them, long before they left."""
    sender, receiver = UcxTransport({"TLS": "tcp"}), UcxTransport({"TLS": "tcp"})
    for transport in (sender, receiver):
        await transport.start()
    try:
        outgoing = await sender.connect(receiver.address)
        incoming = await receiver.connect(sender.address)
        message, count = bytes(range(250)) * 32, 3000
        first = incoming.receive(memoryview(bytearray(len(message))), TAG)
        await outgoing.send(memoryview(message), TAG).wait()
        await first.wait()
        landed = [bytearray(len(message)) for _ in range(count)]
        receives = [incoming.receive(memoryview(b), TAG + 1 + i) for i, b in enumerate(landed)]
        reading = threading.Event()
        assert receiver._plane is not None
        receiver._plane.submit(lambda: reading.wait(60))
        sends = [outgoing.send(memoryview(message), TAG + 1 + i) for i in range(count)]
        await sends[0].wait()
        closing = asyncio.ensure_future(outgoing.close())
        await asyncio.sleep(0)
        reading.set()
        async with asyncio.timeout(60):
            await closing
            for request in (*sends, *receives):
                await request.wait()
        assert all(part == message for part in landed)
    finally:
        async with asyncio.timeout(60):
            await sender.stop()
            await receiver.stop()
