"""What it costs to read a block's boundary: the digests that the dirty instrument compares.

    python bench/boundary_cost.py --preset small --device cpu
    python bench/boundary_cost.py --preset mg2 --device cuda:0 --json boundary.json

Digests every segment of a session's state where it rests, as an engine does behind a block of an
inspected session, and waits for the result. The state has played its window full.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import cast

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from services.engine.device import describe_device, fix_numerics
from services.engine.model.factory import build_world
from services.engine.segment_reading import read_segments
from services.engine.world import Action, StateTree
from worldline.state.tree import materialize, plan

BLOCKS = 3
GRANULES_BYTES = (4 << 10, 16 << 10, 64 << 10, 1 << 20)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--preset", default="small")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = describe_device(options.device)
    fix_numerics(device)
    world = build_world(options.preset, 0, device.torch_device)
    layout = plan(world.state_spec())
    buffer = torch.zeros(layout.extent_bytes, dtype=torch.uint8, device=device.torch_device)
    state = cast(StateTree, materialize(layout, buffer))
    world.initialise(state, 7)
    for index in range(BLOCKS):
        for _ in world.block(state, Action(index, keyboard=1), world.denoising_steps):
            pass
    device.settle()
    rows = []
    for granule_bytes in GRANULES_BYTES:
        read_segments(layout, buffer, granule_bytes)
        times_ms = []
        for _ in range(options.repeats):
            begun_s = time.perf_counter()
            crcs = read_segments(layout, buffer, granule_bytes)
            times_ms.append((time.perf_counter() - begun_s) * 1e3)
        median_ms = statistics.median(times_ms)
        rows.append(
            {
                "granule_bytes": granule_bytes,
                "segments": len(crcs),
                "median_ms": median_ms,
                "max_ms": max(times_ms),
                "gb_per_s": layout.extent_bytes / median_ms / 1e6,
            }
        )
    report = {
        "preset": options.preset,
        "device": options.device,
        "torch": torch.__version__,
        "state_bytes": layout.extent_bytes,
        "repeats": options.repeats,
        "rows": rows,
    }
    text = json.dumps(report, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
