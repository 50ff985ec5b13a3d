"""Payload: a state as the planner lays it out, full of random bytes, by name.

Attention caches of a preset: `mg2` has 1,670,124,960 bytes in 420 tensors. Or `qwen`: the cache of
a language model of 24 layers, 48 tensors over 1,024 tokens.

Both ends lie in memory of the same kind as a mover's slots, so that no contestant has better pages
than another: the source's bytes once, which every contestant reads, and the target's once, into
which everyone who moves memory to memory writes.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from awscrt.checksums import combine_crc64nvme, crc64nvme

from bench.facts import free_huge_bytes
from services.engine.model.config import preset
from services.engine.model.state import CACHE_KEYS, state_spec
from services.mover.memory.host import HostMemory
from services.mover.memory.pages import HUGE_BYTES, HugePages
from worldline.state.layout import Layout, TensorLeaf
from worldline.state.manifest import Digests
from worldline.state.tree import TensorSpec, plan

_STEP_BYTES = 64 << 20
_PAGE_BYTES = 4096
#: Of one extent each that a race holds at once.
_MEMORIES = 4
#: Shaped like the cache of Qwen2-0.5B.
QWEN = "qwen"
_QWEN_LAYERS, _QWEN_HEADS, _QWEN_TOKENS, _QWEN_HEAD_DIM = 24, 2, 1_024, 64


def layout_of(name: str) -> Layout:
    """Where each tensor of the named state lies.

    Raises:
        InvalidInput: there is no such state.
    """
    if name == QWEN:
        shape = (1, _QWEN_HEADS, _QWEN_TOKENS, _QWEN_HEAD_DIM)
        spec = TensorSpec(torch.bfloat16, shape)
        return plan([{"k": spec, "v": spec} for _ in range(_QWEN_LAYERS)])
    state = state_spec(preset(name))
    return plan({key: state[key] for key in CACHE_KEYS})


def fill(view: memoryview, seed: int) -> None:
    """Random bytes, the same for the same seed."""
    generator = np.random.default_rng(seed)
    for start in range(0, view.nbytes, _STEP_BYTES):
        piece = view[start : start + _STEP_BYTES]
        piece[:] = generator.bytes(piece.nbytes)


def spoil(buffer: torch.Tensor) -> None:
    """Change one byte of every page: what is equal to the source afterwards was written anew."""
    buffer[::_PAGE_BYTES].bitwise_not_()


def digest(pieces: Iterable[memoryview]) -> int:
    """CRC-64/NVME over the pieces in turn."""
    crc = 0
    for piece in pieces:
        crc = crc64nvme(piece, crc)
    return crc


def digest_from(layout: Layout, digests: Digests) -> int:
    """The same number as `digest` over all tensors, from the digests of each."""
    crc = 0
    for leaf, leaf_crc in zip(layout.tensors, digests.leaves, strict=True):
        crc = combine_crc64nvme(crc, leaf_crc, leaf.size_bytes)
    return crc


def leaf_views(layout: Layout, view: memoryview) -> Iterator[memoryview]:
    """The bytes of every tensor, in the layout's order; empty ones are left out."""
    for leaf in occupied(layout):
        yield view[leaf.offset_bytes : leaf.end_bytes]


def occupied(layout: Layout) -> list[TensorLeaf]:
    """The tensors that have bytes."""
    return [leaf for leaf in layout.tensors if leaf.size_bytes]


@dataclass(frozen=True, slots=True)
class Shared:
    """What a worker needs to map one end: a descriptor that it inherits, and the extent."""

    descriptor: int
    extent_bytes: int

    def map(self) -> mmap.mmap:
        """The whole file, which may be larger, its pages already in this process's tables."""
        return mmap.mmap(self.descriptor, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE)


def fair_pages(extent_bytes: int, free_bytes: int) -> HugePages:
    """Which pages everybody is to have, where `free_bytes` of reserved large pages are free. Pure.

    Enough of them for the payload's two ends and two movers' slots, or none for anybody: whoever
    came first would take them from the others.
    """
    short = 0 < free_bytes < _MEMORIES * (extent_bytes + HUGE_BYTES)
    return HugePages.NEVER if short else HugePages.AUTO


class Payload:
    """Both ends. Holds twice the extent until `close`."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.layout = layout_of(name)
        extent_bytes = self.layout.extent_bytes
        #: What movers that move it should be set to.
        self.huge_pages = fair_pages(extent_bytes, free_huge_bytes())
        self._source = HostMemory("bench-source", extent_bytes, self.huge_pages)
        self._target = HostMemory("bench-target", extent_bytes, self.huge_pages)
        for memory in (self._source, self._target):
            memory.prepare(extent_bytes, zero=False)
        view = self._source.part(0, extent_bytes)
        fill(view, seed)
        #: Of the tensors in order, gaps left out.
        self.digest = digest(leaf_views(self.layout, view))

    @property
    def pages(self) -> str:
        """What both ends are made of: reserved, transparent or small."""
        return self._source.pages.value

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(leaf.size_bytes for leaf in self.layout.tensors)

    def shared(self, role: str) -> Shared:
        """The end that a `source` or `target` maps."""
        memory = self._source if role == "source" else self._target
        return Shared(memory.export().number, self.layout.extent_bytes)

    def copy_to(self, buffer: torch.Tensor) -> None:
        """Put the source's bytes at the start of other memory, on whatever device."""
        extent_bytes = self.layout.extent_bytes
        source = torch.frombuffer(self._source.part(0, extent_bytes), dtype=torch.uint8)
        buffer[:extent_bytes].copy_(source)

    def close(self) -> None:
        """Give the memory back."""
        self._source.close()
        self._target.close()
