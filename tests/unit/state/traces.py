"""Traces of states that follow a rule by construction, recorded with the real digests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch

from worldline.state.boundary import Baseline
from worldline.state.digest import Digester
from worldline.state.dirty import DirtyTrace
from worldline.state.gf2 import Uint64s
from worldline.state.layout import Layout
from worldline.state.tracer import Tracer
from worldline.state.tree import TensorSpec, plan

BLOCK_MS = 400.0


def segment_crcs(layout: Layout, buffer: torch.Tensor, granule_bytes: int) -> Uint64s:
    digester = Digester(layout, granule_bytes)
    view = memoryview(buffer.numpy())[: layout.extent_bytes]
    digester.update(0, digester.granule_count, view)
    return digester.segment_crcs()


def record(
    layout: Layout,
    buffer: torch.Tensor,
    granule_bytes: int,
    blocks: Iterable[object],
    first_block: int = 0,
    baseline: torch.Tensor | None = None,
) -> DirtyTrace:
    """A boundary now, and one after each of `blocks`, which write the buffer as they are drawn."""
    first = segment_crcs(layout, buffer if baseline is None else baseline, granule_bytes)
    tracer = Tracer(first)
    here = segment_crcs(layout, buffer, granule_bytes)
    boundaries = [tracer.boundary(first_block, 0.0, 0.0, here)]
    for done, _ in enumerate(blocks, start=1):
        here = segment_crcs(layout, buffer, granule_bytes)
        boundaries.append(tracer.boundary(first_block + done, done * BLOCK_MS, 1.0, here))
    return DirtyTrace(layout, granule_bytes, Baseline.INITIAL_STATE, tuple(boundaries))


@dataclass
class Window:
    """A cache of `frames` latent frames along dimension 1, in rows, beside one it never writes.

    `block` writes `step` frames: at the free end, and once the window is full behind what is kept,
    which moves to the front; the first `sink` frames never move. `rewrites` False: it stops there.
    """

    frames: int
    step: int
    sink: int
    rows: int
    frame_bytes: int
    seed: int = 0

    def __post_init__(self) -> None:
        shape = (self.rows, self.frames, self.frame_bytes)
        self.layout = plan(
            {"kv": TensorSpec(torch.uint8, shape), "unwired": TensorSpec(torch.uint8, shape)}
        )
        self.buffer = torch.zeros(self.layout.extent_bytes, dtype=torch.uint8)
        leaf = self.layout.tensors[0]
        kv = self.buffer[leaf.offset_bytes : leaf.end_bytes].view(shape)
        self.kv, self.end = kv, 0
        self.random = np.random.default_rng(self.seed)

    def block(self) -> None:
        if self.end + self.step > self.frames:
            kept = self.frames - self.step
            source = self.kv[:, self.end - (kept - self.sink) : self.end].clone()
            self.kv[:, self.sink : kept] = source
            self.end = kept
        self.write(self.end, self.step)
        self.end += self.step

    def write(self, first: int, count: int) -> None:
        """Bytes that no byte of them had before, so that content changes everywhere."""
        there = self.kv[:, first : first + count]
        drawn = self.random.integers(1, 255, tuple(there.shape), dtype=np.uint8, endpoint=True)
        there[:] = torch.from_numpy(drawn)

    def trace(self, blocks: int, granule_bytes: int, before: int = 0) -> DirtyTrace:
        """`before` blocks that nobody looks at, then `blocks` that are observed."""
        fresh = self.buffer.clone()
        for _ in range(before):
            self.block()
        steps = (self.block() for _ in range(blocks))
        return record(self.layout, self.buffer, granule_bytes, steps, before, fresh)


def run(
    layout: Layout, buffer: torch.Tensor, write: Callable[[int], None], blocks: int, granule: int
):
    """A trace of `write(index)` for each block."""
    return record(layout, buffer, granule, (write(index) for index in range(blocks)))
