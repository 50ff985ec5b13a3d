"""The other side: a process with a model of its own that goes on from a slot. Not a test itself.

    python -m tests.language_peer DEVICE

Reads one request a line: {"mover": host:port, "session_id": ..., "slot": a SlotRef, "layout": a
Layout with its scalars (both serialized, hex), "steps": n}. Answers one line: {"whole": digest of
the installed tensors, "tokens": [...], "logits": [...]}.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import torch

from services.engine.device import EngineDevice, describe_device, fix_numerics
from services.engine.peers import MoverSlots
from tests.language import Decoding, language_model, qwen_config
from tests.mover_pair import CALL_S
from worldline.adapters.huggingface import cache_from, tree_of
from worldline.rpc.channel import ChannelPool
from worldline.state.codec import layout_from_proto
from worldline.state.digest import digest_slot
from worldline.state.layout import Layout
from worldline.state.tree import materialize, pack
from worldline.v1 import manifest_pb2, move_pb2


def go_on(layout: Layout, slot: torch.Tensor, model: Any, steps: int) -> dict[str, Any]:
    """Install the state by pointer, digest what was installed, and decode."""
    tree: Any = materialize(layout, slot)
    cache = cache_from(tree["cache"], model.config)
    decoding = Decoding(model, cache, tree["next_token"])
    installed = torch.empty(layout.extent_bytes, dtype=torch.uint8, device=slot.device)
    read_back = pack(decoding.state(tree_of(cache)), layout, installed)
    whole = digest_slot(read_back, memoryview(installed.cpu().numpy())).whole
    decoding.go_on(steps)
    return {"whole": whole, "tokens": decoding.tokens, "logits": decoding.logits}


async def answer(request: dict[str, Any], model: Any, device: EngineDevice) -> dict[str, Any]:
    slot = move_pb2.SlotRef.FromString(bytes.fromhex(request["slot"]))
    message = manifest_pb2.Layout.FromString(bytes.fromhex(request["layout"]))
    channels = ChannelPool()
    try:
        slots = MoverSlots(channels, request["mover"], CALL_S, device)
        memory = await slots.map(slot, request["session_id"])
    finally:
        await channels.close()
    result = go_on(layout_from_proto(message), memory.buffer(), model, request["steps"])
    memory.close()
    return result


def main() -> None:
    torch.set_num_threads(1)
    device = describe_device(sys.argv[1])
    fix_numerics(device)
    device.enter()
    model = language_model(qwen_config(), device.name)
    for line in sys.stdin:
        result = asyncio.run(answer(json.loads(line), model, device))
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
