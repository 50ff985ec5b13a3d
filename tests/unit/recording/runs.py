"""Runs of a made-up state of a few hundred bytes, for the tests of recordings."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from worldline.contract import Contract, ServiceClass
from worldline.recording.run import Run, RunBlock, RunHeader
from worldline.sdk.actions import Action
from worldline.sdk.records import World
from worldline.state.digest import digest_slot
from worldline.state.layout import Layout
from worldline.state.manifest import Digests, Fingerprint
from worldline.state.tree import TensorSpec, plan

#: Small enough that the leaves lie in granules of their own.
GRANULE_BYTES = 64
LAYOUT: Layout = plan(
    {
        "cache": [
            {"k": TensorSpec(torch.uint8, (300,)), "v": TensorSpec(torch.uint8, (300,)), "end": 0}
            for _ in range(2)
        ],
        "block_index": 0,
        "scale": 0.5,
        "name": "here",
        "mask": b"\x00\xff",
        "is_init": False,
        "nothing": None,
    }
)
FINGERPRINT = Fingerprint.of({"threads": "1", "torch": "2"})
CONTRACT = Contract(ServiceClass.C1_INTERACTIVE, 5_000.0)


def state(seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bytes of a state, which the seed decides."""
    return np.random.default_rng(seed).integers(0, 256, LAYOUT.extent_bytes, dtype=np.uint8)


def digests(seed: int = 0, *, flip: int | None = None, **scalars: Any) -> Digests:
    """Of that state, with one byte of it changed, and with other scalars."""
    data = state(seed)
    if flip is not None:
        data[flip] ^= 1
    return digest_slot(LAYOUT.with_scalars(scalars), memoryview(data), GRANULE_BYTES)


def header(**facts: Any) -> RunHeader:
    known = {
        "session_id": "session-1",
        "epoch": 1,
        "world": World("tiny", 7),
        "contract": CONTRACT,
        "fingerprint": FINGERPRINT,
        "block_index": 0,
        "layout": LAYOUT,
        "digests": digests(),
    }
    return RunHeader(**{**known, **facts})


def block(index: int, *, flip: int | None = None, **facts: Any) -> RunBlock:
    scalars = {**LAYOUT.scalar_values(), "block_index": index + 1}
    known = {
        "block_index": index,
        "epoch": 1,
        "action": Action.keys("W", mouse_dx=0.25),
        "steps": 3,
        "steps_full": 3,
        "frames_digest": index * 7,
        "digests": digests(index + 1, flip=flip, block_index=index + 1),
        "scalars": scalars,
    }
    return RunBlock(**{**known, **facts})


def run(count: int = 4, start: int = 0, **facts: Any) -> Run:
    blocks = tuple(block(start + place) for place in range(count))
    return Run(header(block_index=start, **facts), blocks)
