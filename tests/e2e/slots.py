"""Slots from outside: a test reaches into a mover's memory through /proc, as nobody else may."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from worldline.cli.process import ServiceProcess
from worldline.rpc.channel import call, open_channel
from worldline.v1 import mover_pb2, mover_pb2_grpc


async def slot_file(mover: ServiceProcess, session_id: str) -> Path:
    """The memfd of the slot that holds the session, whatever its role."""
    async with open_channel(mover.address) as channel:
        stub = mover_pb2_grpc.MoverServiceStub(channel)
        answer = await call(stub.DescribeMover, mover_pb2.DescribeMoverRequest(), timeout_s=60)
    index = next(each.slot.slot_index for each in answer.slots if each.session_id == session_id)
    for entry in _descriptors(mover.pid):
        name = os.readlink(entry)
        if name.startswith("/memfd:") and name.split()[0].endswith(f"-{index}"):
            return entry
    raise LookupError(f"no memfd of slot {index} in {mover.name}")


def _descriptors(pid: int) -> list[Path]:
    return sorted(Path(f"/proc/{pid}/fd").iterdir())


async def slot_map(mover: ServiceProcess, session_id: str) -> mmap.mmap:
    """The slot's memory, shared with whoever else has it. Mapped: huge pages take no `write`."""
    with (await slot_file(mover, session_id)).open("r+b") as memory:
        return mmap.mmap(memory.fileno(), 0)


async def flip_bit(mover: ServiceProcess, session_id: str, offset_bytes: int, bit: int = 4) -> None:
    """Change one bit of the slot's memory under everybody's feet."""
    with await slot_map(mover, session_id) as memory:
        memory[offset_bytes] ^= 1 << bit
