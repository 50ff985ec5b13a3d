"""Where the bits of a world part between two configurations of one machine.

    python bench/determinism.py --preset tiny --blocks 16 --json determinism.json

Plays the same actions from one seed in a process per configuration: another thread count, and each
instruction set that a variable can force below the machine's own. Compares every block with the
first configuration's: the first that differs, how many leaves of it, by how much its frames. Says
whether the configuration fingerprints differ, which is what placement and engines go by. Exit
status 1 where bits differed under equal fingerprints: then a fact is missing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from worldline.state.manifest import Fingerprint

#: By name: threads, and the variables of the process.
CONFIGURATIONS: dict[str, tuple[int, dict[str, str]]] = {
    "1 thread": (1, {}),
    "1 thread, again": (1, {}),
    "2 threads": (2, {}),
    "ATEN_CPU_CAPABILITY=default": (1, {"ATEN_CPU_CAPABILITY": "default"}),
    "ATEN_CPU_CAPABILITY=avx2": (1, {"ATEN_CPU_CAPABILITY": "avx2"}),
    "ONEDNN_MAX_CPU_ISA=SSE41": (1, {"ONEDNN_MAX_CPU_ISA": "SSE41"}),
    "MKL_CBWR=COMPATIBLE": (1, {"MKL_CBWR": "COMPATIBLE"}),
}
_SEED = 7
_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Compared:
    """One configuration against the first. `first_block` None: no block differed."""

    name: str
    facts: tuple[str, ...]
    first_block: int | None
    leaves: int
    leaves_differing: int
    first_leaf: str
    #: Of the last block's frames against the first configuration's, in dB; None where equal.
    psnr_last_db: float | None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", type=int, metavar="THREADS", help=argparse.SUPPRESS)
    wish = parser.parse_args()
    if wish.child is not None:
        json.dump(played(wish.preset, wish.blocks, wish.child), sys.stdout)
        return 0
    found = [
        run_child(wish.preset, wish.blocks, threads, variables)
        for threads, variables in CONFIGURATIONS.values()
    ]
    names = list(CONFIGURATIONS)
    rows = [compared(name, found[0], one) for name, one in zip(names, found, strict=True)]
    report = {
        "preset": wish.preset,
        "blocks": wish.blocks,
        "machine": {"cpu": cpu_model(), "python": platform.python_version()},
        "facts": found[0]["facts"],
        "configurations": [asdict(row) for row in rows],
    }
    if wish.json is not None:
        wish.json.write_text(json.dumps(report, indent=1) + "\n")
    show(report, rows)
    unseen = [row.name for row in rows if row.first_block is not None and not row.facts]
    if unseen:
        print(f"bits differ and fingerprints do not: {', '.join(unseen)}", file=sys.stderr)
    return 1 if unseen else 0


def played(preset: str, blocks: int, threads: int) -> dict[str, Any]:
    """What this process makes of the world: digests per leaf, the last frames, its facts."""
    import torch

    from services.engine.device import CPU_DEVICE
    from services.engine.making import memory_for
    from services.engine.model.factory import build_world, engine_code, weights_digest
    from services.engine.privateslot import PrivateSlot
    from services.engine.world import Action
    from worldline.state.digest import crc64
    from worldline.state.tree import plan

    torch.set_num_threads(threads)
    model = build_world(preset, 0, torch.device("cpu"))
    layout = plan(model.state_spec())
    memory = memory_for(model, PrivateSlot(layout.extent_bytes, CPU_DEVICE), layout)
    memory.begin()
    model.initialise(memory.state, _SEED)
    seen, pixels = [], b""
    for index in range(blocks):
        action = Action(index, keyboard=index % 16, mouse_dx=(index % 5 - 2) / 2)
        run = model.block(memory.state, action, model.denoising_steps)
        while True:
            try:
                next(run)
            except StopIteration as finished:
                pixels = finished.value.pixels
                break
        digests = memory.digests()
        seen.append({"whole": digests.whole, "leaves": digests.leaves, "frames": crc64(pixels)})
    fingerprint = CPU_DEVICE.fingerprint(
        engine_code=engine_code(), weights_digest=weights_digest(0), threads=threads
    )
    return {
        "paths": [leaf.path for leaf in layout.tensors],
        "blocks": seen,
        "pixels": pixels.hex(),
        "facts": dict(fingerprint.facts),
    }


def run_child(preset: str, blocks: int, threads: int, variables: dict[str, str]) -> dict[str, Any]:
    """The same in a process of that configuration."""
    arguments = ["--preset", preset, "--blocks", str(blocks), "--child", str(threads)]
    known = {name for _, each in CONFIGURATIONS.values() for name in each}
    clean = {name: value for name, value in os.environ.items() if name not in known}
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        env=clean | variables,
        stdout=subprocess.PIPE,
        timeout=_TIMEOUT_S,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def compared(name: str, expected: dict[str, Any], actual: dict[str, Any]) -> Compared:
    """Where it parts from the first configuration."""
    here, there = Fingerprint.of(expected["facts"]), Fingerprint.of(actual["facts"])
    facts = tuple(line.partition(":")[0] for line in here.differences(there))
    pairs = list(zip(expected["blocks"], actual["blocks"], strict=True))
    first = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    differing: list[str] = []
    if first is not None:
        one, other = pairs[first]
        leaves = zip(expected["paths"], one["leaves"], other["leaves"], strict=True)
        differing = [path for path, was, now in leaves if was != now]
    return Compared(
        name,
        facts,
        first,
        len(expected["paths"]),
        len(differing),
        differing[0] if differing else "",
        psnr_db(bytes.fromhex(expected["pixels"]), bytes.fromhex(actual["pixels"])),
    )


def psnr_db(one: bytes, other: bytes) -> float | None:
    """Peak signal to noise of 8-bit pixels; None where they are equal."""
    here, there = (np.frombuffer(each, np.uint8).astype(np.float64) for each in (one, other))
    error = float(np.mean((here - there) ** 2)) if here.size else 0.0
    return None if error == 0 else 10 * math.log10(255**2 / error)


def show(report: dict[str, Any], rows: list[Compared]) -> None:
    """One line a configuration, as Markdown."""
    print(f"{report['preset']}, {report['blocks']} blocks, {report['machine']['cpu']}, ", end="")
    print(f"torch {report['facts']['torch']}, {report['facts']['instruction_set']}\n")
    print("| configuration | first differing block | leaves | last frames | facts that differ |")
    print("|---|---|---|---|---|")
    for row in rows:
        where = "none" if row.first_block is None else f"{row.first_block} ({row.first_leaf})"
        last = "equal" if row.psnr_last_db is None else f"{row.psnr_last_db:.1f} dB"
        facts = ", ".join(row.facts) or "none"
        print(f"| {row.name} | {where} | {row.leaves_differing}/{row.leaves} | {last} | {facts} |")


def cpu_model() -> str:
    """As Linux names it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or "unknown")


if __name__ == "__main__":
    sys.exit(main())
