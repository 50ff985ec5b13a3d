"""A language model's cache on its way from one device to another, and the proof that it arrived.

Nothing between the two processes knows what the bytes are: a tree was laid out and packed into a
slot, the movers reserve, push, verify and promote it, and another process with a model of its own
makes a cache of it. Every token and every bit of its logits must be those of the decoding that
stayed where it was.
"""

from __future__ import annotations

import asyncio
import copy
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.engine.device import EngineDevice
from tests.language import (
    BYTES_PER_TOKEN,
    KV_LEAVES,
    STATIC_TOKENS,
    Decoding,
    language_model,
    new_cache,
    prompt,
    qwen_config,
)
from tests.mover_pair import MoverNode, mover_pair, occupied
from tests.oracles import bounded, until
from tests.unit.mover.cluster import Cluster
from worldline.adapters.huggingface import tree_of
from worldline.errors import Conflict
from worldline.state.codec import layout_to_proto
from worldline.state.layout import Layout
from worldline.state.manifest import Manifest
from worldline.state.tree import pack, plan
from worldline.v1 import move_pb2, mover_pb2

ROOT = Path(__file__).parents[1]
SESSION = "session-1"
SLOT_BYTES = 32 << 20
PROMPT_TOKENS = 600
#: Decoded before the move, so that prompt and steps are in the cache, and after it.
BEFORE, AFTER = 4, 20
KINDS = ("dynamic", "static")


@dataclass
class Moved:
    """A state that has landed at `b`."""

    manifest: Manifest
    reservation_id: str
    slot: move_pb2.SlotRef
    outcome: mover_pb2.PushOutcome


class Peer:
    """The process at the other side."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def go_on(self, node: MoverNode, moved: Moved, steps: int) -> dict[str, Any]:
        """Install what has landed and decode; see `language_peer`."""
        request = {
            "mover": node.address,
            "session_id": SESSION,
            "slot": moved.slot.SerializeToString().hex(),
            "layout": layout_to_proto(moved.manifest.layout).SerializeToString().hex(),
            "steps": steps,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        answer: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return answer


@dataclass
class Road:
    """From a model on the device of `a` to one on the device of `b`."""

    movers: Cluster
    peer: Peer
    #: By kind of cache: in the middle of an answer.
    begun: dict[str, Decoding]

    def node(self, name: str) -> MoverNode:
        node: Any = self.movers.nodes[name]
        assert isinstance(node, MoverNode)
        return node

    def decoding(self, kind: str) -> Decoding:
        """One of the decodings, for one test."""
        start = self.begun[kind]
        return Decoding(start.model, copy.deepcopy(start.cache), start.next_token)

    async def freeze(self, decoding: Decoding) -> tuple[move_pb2.SlotRef, Layout]:
        """The decoding's state in a slot at `a`."""
        state = decoding.state(tree_of(decoding.cache))
        layout = plan(state)
        slots = self.node("a").slots
        slot = await slots.allocate(SESSION, layout.extent_bytes)
        memory = await slots.map(slot, SESSION)
        layout = pack(state, layout, memory.buffer())
        memory.settle()
        memory.close()
        return slot, layout

    async def push(self, slot: move_pb2.SlotRef, layout: Layout) -> Moved:
        """Reserve and push as placement does."""
        manifest = self.movers.manifest(layout)
        ticket = self.movers.ticket(layout)
        reserved = await self.movers.reserve(ticket, layout)
        outcome, _ = await self.movers.push(ticket, manifest, reserved.reservation_id, slot)
        return Moved(manifest, reserved.reservation_id, reserved.slot, outcome)

    async def flip_bit(self, moved: Moved, offset_bytes: int) -> None:
        """Change one bit of what has landed."""
        memory = await self.node("b").slots.map(moved.slot, SESSION)
        memory.buffer()[offset_bytes].bitwise_xor_(0x40)
        memory.settle()
        memory.close()


@asynccontextmanager
async def road(directory: Path, source: EngineDevice, target: EngineDevice) -> AsyncIterator[Road]:
    """Movers, both models and the begun decodings; in the end nothing may be occupied."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.language_peer",
        target.name,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdin is not None
    try:
        async with mover_pair(directory, SLOT_BYTES, {"a": source, "b": target}) as movers:
            yield Road(movers, Peer(process), _begun(source))
            async with bounded():
                await until(lambda: occupied(movers))
    finally:
        process.stdin.close()
        async with bounded():
            await process.wait()


def _begun(device: EngineDevice) -> dict[str, Decoding]:
    model = language_model(qwen_config(), device.name)
    ids = prompt(model.config, PROMPT_TOKENS, device.name)
    return {
        kind: Decoding.begin(model, new_cache(kind, model.config), ids).go_on(BEFORE)
        for kind in KINDS
    }


async def check_that_decoding_goes_on(road: Road, kind: str) -> None:
    """The cache moves, and the other side says what this side would have said."""
    decoding = road.decoding(kind)
    slot, layout = await road.freeze(decoding)
    caches = [leaf for leaf in layout.tensors if leaf.path.endswith((".keys", ".values"))]
    tokens = STATIC_TOKENS if kind == "static" else PROMPT_TOKENS + BEFORE
    assert len(caches) == KV_LEAVES
    assert sum(leaf.size_bytes for leaf in caches) == BYTES_PER_TOKEN * tokens
    movers = road.movers
    async with bounded():
        moved = await road.push(slot, layout)
        digests = moved.outcome.digests
        assert (await movers.verify(moved.reservation_id, moved.manifest, digests)).equal
        await movers.promote(moved.reservation_id, moved.slot)
        assert await movers.release("a", slot)
        there = await road.peer.go_on(road.node("b"), moved, AFTER)
    assert there["whole"] == digests.whole
    decoding.go_on(AFTER)  # the run that never moved
    assert there["tokens"] == decoding.tokens
    assert there["logits"] == decoding.logits
    assert len(set(decoding.tokens)) > AFTER // 2, "a model that repeats itself proves nothing"
    assert await movers.release("b", moved.slot)


async def check_that_one_bit_matters(road: Road, kind: str) -> None:
    """The control: one wrong bit is refused, and would have been heard."""
    decoding = road.decoding(kind)
    slot, layout = await road.freeze(decoding)
    leaf = next(leaf for leaf in layout.tensors if leaf.path == "cache.layers[11].keys")
    wrong_byte = leaf.offset_bytes + 64 * 2 * 500 + 1  # a high bit of the exponent, token 500
    movers = road.movers
    async with bounded():
        moved = await road.push(slot, layout)
        await road.flip_bit(moved, wrong_byte)
        digests = moved.outcome.digests
        answer = await movers.verify(moved.reservation_id, moved.manifest, digests)
        assert not answer.equal
        assert (answer.failure.leaf, answer.failure.granule) == (leaf.path, wrong_byte >> 20)
        with pytest.raises(Conflict):
            await movers.promote(moved.reservation_id, moved.slot)
        there = await road.peer.go_on(road.node("b"), moved, 2)
    assert there["whole"] != digests.whole
    assert there["logits"] != decoding.go_on(2).logits
    assert await movers.release("a", slot)
    assert await movers.release("b", moved.slot)
