"""Private world: a session in memory of its own, held as an engine holds one."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from services.engine.check.script import scripted
from services.engine.check.subject import Subject
from services.engine.device import EngineDevice
from services.engine.making import initialised, memory_for
from services.engine.memory import Memory
from services.engine.parts import exhaust
from services.engine.privateslot import PrivateSlot
from services.engine.world import Frames, StateTree
from worldline.state.digest import crc64
from worldline.state.harvest import harvest
from worldline.state.layout import Layout
from worldline.state.view import copy_bits

#: What a slot that nobody has cleared may hold.
POISON = 0xA5
#: What kernels want slots aligned to.
_ALIGNMENT_BYTES = 64


class SpoiltSlot(PrivateSlot):
    """A private slot that holds `fill` in every byte, at any address but the one to avoid."""

    def __init__(
        self, size_bytes: int, device: EngineDevice, *, fill: int, avoid_address: int
    ) -> None:
        super().__init__(size_bytes + _ALIGNMENT_BYTES, device)
        held = self.buffer().fill_(fill)
        offset_bytes = _ALIGNMENT_BYTES if held.data_ptr() == avoid_address else 0
        self._memory = held[offset_bytes:][:size_bytes]
        self.size_bytes = size_bytes


@dataclass(frozen=True)
class Seen:
    """One block as it is compared: digests of what it showed and of the state behind it."""

    block_index: int
    frames_digest: int
    state_digest: int
    #: One per tensor leaf of the layout.
    leaf_digests: tuple[int, ...]
    #: By path, as text: for people and for comparing.
    scalars: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        """As another process is told."""
        return asdict(self)

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> Seen:
        """As another process said."""
        return cls(
            int(said["block_index"]),
            int(said["frames_digest"]),
            int(said["state_digest"]),
            tuple(int(digest) for digest in said["leaf_digests"]),
            tuple((str(path), str(value)) for path, value in said["scalars"]),
        )


@dataclass(frozen=True)
class Snapshot:
    """A state at a block boundary: what a move would carry."""

    block_index: int
    layout: Layout
    data: bytes


class PrivateWorld:
    """One session of a subject. `close` gives its tensors back."""

    def __init__(self, subject: Subject, layout: Layout, *, fill: int, avoid_address: int) -> None:
        self.subject = subject
        self.block_index = 0
        slot = SpoiltSlot(
            layout.extent_bytes, subject.device, fill=fill, avoid_address=avoid_address
        )
        self.buffer = slot.buffer()
        self.memory: Memory = memory_for(subject.model, slot, layout)

    @classmethod
    def opened(
        cls, subject: Subject, seed: int, *, fill: int = POISON, avoid_address: int = 0
    ) -> PrivateWorld:
        """A fresh session in a slot that another one has left."""
        world = cls(subject, subject.layout, fill=fill, avoid_address=avoid_address)
        world.memory.begin()
        if world.memory.copies:
            _fill(world.state, fill)
        exhaust(initialised(subject.model, world.memory.state, seed))
        return world

    @classmethod
    def restored(
        cls, subject: Subject, snapshot: Snapshot, *, avoid_address: int = 0
    ) -> PrivateWorld:
        """A session that has arrived."""
        world = cls(subject, snapshot.layout, fill=POISON, avoid_address=avoid_address)
        world.buffer.copy_(torch.frombuffer(bytearray(snapshot.data), dtype=torch.uint8))
        world.memory.load()
        world.block_index = snapshot.block_index
        return world

    @property
    def address(self) -> int:
        """Where the slot begins."""
        return self.buffer.data_ptr()

    @property
    def state(self) -> StateTree:
        """What the model works on."""
        return self.memory.state

    def begin(self, steps: int | None = None) -> Generator[None, None, Frames]:
        """Begin the next block, under the script's action."""
        self.memory.changing()
        model = self.subject.model
        steps = model.denoising_steps if steps is None else steps
        return model.block(self.state, scripted(self.block_index), steps)

    def block(self, steps: int | None = None) -> Frames:
        """Generate the next block.

        Raises:
            InvariantBroken: the model replaced a leaf. Whatever else the model raises.
        """
        run = self.begin(steps)
        while True:
            try:
                next(run)
            except StopIteration as finished:
                return self.finished(finished.value)

    def finished(self, frames: Frames) -> Frames:
        """A block has ended: its frames, after what an engine looks at."""
        self.memory.settle()
        self.memory.check_in_place()
        self.block_index += 1
        return frames

    def seen(self, frames: Frames) -> Seen:
        """The last block, to compare."""
        digests = self.memory.digests()
        return Seen(
            block_index=self.block_index - 1,
            frames_digest=crc64(frames.pixels),
            state_digest=digests.whole,
            leaf_digests=digests.leaves,
            scalars=tuple((one.path, repr(one.value)) for one in harvest(self.state).scalars),
        )

    def play(self, blocks: int) -> tuple[Seen, ...]:
        """Generate some blocks."""
        return tuple([self.seen(self.block()) for _ in range(blocks)])

    def snapshot(self) -> Snapshot:
        """What a move would carry now."""
        layout = self.memory.layout()
        return Snapshot(self.block_index, layout, bytes(self.buffer.cpu().numpy()))

    def close(self) -> None:
        """Drop every view, and give back what was lent."""
        del self.buffer
        self.memory.close()

    def __enter__(self) -> PrivateWorld:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _fill(state: StateTree, fill: int) -> None:
    """Tensors of a model's own hold anything when they are lent."""
    for item in harvest(state).tensors:
        tensor = item.value
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            held = torch.full((tensor.nbytes,), fill, dtype=torch.uint8, device=tensor.device)
            copy_bits(held.view(tensor.dtype).view(tensor.shape), tensor)


def difference(layout: Layout, expected: Seen, actual: Seen) -> str:
    """Where two runs part at a block; empty where they are equal."""
    if (expected.frames_digest, expected.state_digest) == (
        actual.frames_digest,
        actual.state_digest,
    ):
        return ""
    leaves = [
        leaf.path
        for leaf, one, other in zip(
            layout.tensors, expected.leaf_digests, actual.leaf_digests, strict=True
        )
        if one != other
    ]
    leaves += [
        path
        for (path, one), (_, other) in zip(expected.scalars, actual.scalars, strict=False)
        if one != other
    ]
    parts = [
        *(["its frames"] if expected.frames_digest != actual.frames_digest else []),
        *([f"{len(leaves)} leaves ({', '.join(leaves[:4])})"] if leaves else []),
    ]
    return f"block {expected.block_index} differs: {' and '.join(parts) or 'its state'}"


def first_difference(layout: Layout, expected: tuple[Seen, ...], actual: tuple[Seen, ...]) -> str:
    """The first block at which two runs part; empty where they are equal."""
    for one, other in zip(expected, actual, strict=True):
        found = difference(layout, one, other)
        if found:
            return found
    return ""
