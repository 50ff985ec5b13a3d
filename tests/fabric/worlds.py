"""Worlds: sessions of which only the state exists, each in a LIVE slot of one node."""

from __future__ import annotations

import asyncio
import mmap
import os
from dataclasses import dataclass

import numpy as np

from services.engine.slotsocket import HostMemory, fetch
from tests.fabric.services import CALL_S, Services
from worldline.rpc.channel import call
from worldline.state.codec import digests_to_proto
from worldline.state.digest import digest_slot
from worldline.state.layout import Layout, flat_layout
from worldline.v1 import manifest_pb2, move_pb2, mover_pb2

EPOCH = 1


@dataclass(slots=True)
class World:
    """One state, where it rests, and what its bytes digest to."""

    session_id: str
    node: str
    slot: move_pb2.SlotRef
    layout: Layout
    digests: manifest_pb2.Digests


async def make_world(services: Services, session_id: str, node: str, size_bytes: int) -> World:
    """A state of random bytes, the same for the same session."""
    layout = flat_layout("state", size_bytes)
    allocate = mover_pb2.AllocateRequest(session_id=session_id, extent_bytes=size_bytes)
    slot = (await call(services.mover(node).Allocate, allocate, timeout_s=CALL_S)).slot
    request = mover_pb2.MapSlotRequest(slot=slot, session_id=session_id)
    answer = await call(services.mover(node).MapSlot, request, timeout_s=CALL_S)
    found = await asyncio.to_thread(fetch, answer.socket_path, answer.token, CALL_S)
    assert isinstance(found, HostMemory)
    data = np.random.default_rng(list(session_id.encode())).bytes(size_bytes)
    try:
        with mmap.mmap(found.descriptor, os.fstat(found.descriptor).st_size) as memory:
            memory[:size_bytes] = data
    finally:
        os.close(found.descriptor)
    digests = digests_to_proto(digest_slot(layout, memoryview(data)))
    return World(session_id, node, slot, layout, digests)


async def release(services: Services, world: World, node: str, slot: move_pb2.SlotRef) -> None:
    """Give one of a world's slots back."""
    request = mover_pb2.ReleaseRequest(slot=slot, session_id=world.session_id)
    answer = await call(services.mover(node).Release, request, timeout_s=CALL_S)
    assert answer.released, f"{node} had let go of the slot of {world.session_id}"
