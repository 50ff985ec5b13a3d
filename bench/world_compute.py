"""What a block of a preset takes on a device, and whether two runs give the same bits.

    python bench/world_compute.py --preset tiny --device cpu
    python bench/world_compute.py --preset mg2 --device cuda:0 --json mg2.json

Plays the same actions twice from one seed, in two separate buffers, and compares the CRC-64/NVME
of the whole state after every block. Exit status 0 only if all are equal.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from services.engine.model.factory import build_world
from services.engine.world import Action, WorldModel
from worldline.state.digest import crc64
from worldline.state.tree import materialize, plan


def play(
    world: WorldModel, device: torch.device, blocks: int, seed: int
) -> tuple[list[int], list[float], int]:
    """State digests after each block, milliseconds per block, bytes of the state."""
    layout = plan(world.state_spec())
    buffer = torch.zeros(layout.extent_bytes, dtype=torch.uint8, device=device)
    state = materialize(layout, buffer)
    world.initialise(state, seed)
    digests, times_ms = [], []
    for index in range(blocks):
        action = Action(index, keyboard=index % 16, mouse_dx=(index % 5 - 2) / 2)
        synchronize(device)
        begun_s = time.perf_counter()
        for _ in world.block(state, action, world.denoising_steps):
            pass
        synchronize(device)
        times_ms.append((time.perf_counter() - begun_s) * 1e3)
        digests.append(crc64(memoryview(buffer.cpu().numpy())))
    return digests, times_ms, layout.extent_bytes


def synchronize(device: torch.device) -> None:
    """Wait for the device's queued work, so that clocks mean something."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    world = build_world(options.preset, 0, device)
    first, times_ms, size_bytes = play(world, device, options.blocks, options.seed)
    second, again_ms, _ = play(world, device, options.blocks, options.seed)
    is_cuda = device.type == "cuda"
    report = {
        "preset": options.preset,
        "device": torch.cuda.get_device_name(device) if is_cuda else platform.machine(),
        "torch": torch.__version__,
        "state_bytes": size_bytes,
        "blocks": options.blocks,
        # The first block pays for kernels and allocators once; it is shown apart.
        "first_block_ms": times_ms[0],
        "block_ms_median": statistics.median(times_ms[1:] + again_ms[1:]),
        "quanta_per_block": world.quanta_per_block,
        "bit_identical": first == second,
        "distinct_states": len(set(first)),
    }
    text = json.dumps(report, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 0 if first == second and len(set(first)) == options.blocks else 1


if __name__ == "__main__":
    raise SystemExit(main())
