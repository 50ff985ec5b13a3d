"""Ten lines: a world plays, and moves to another node while it does."""

import asyncio

from worldline import Action, Client


async def main() -> None:
    """Play 100 blocks; move after block 20."""
    async with Client("127.0.0.1:7400") as client, await client.open("tiny", seed=7) as session:
        async for block in session.play(Action.keys("W") for _ in range(100)):
            print(block.index, block.epoch, block.frames.shape)
            if block.index == 20:
                record = await session.move("node-2")  # the stream goes on, no block lost
                print(record.outcome, record.frozen_ms, "ms")


asyncio.run(main())
