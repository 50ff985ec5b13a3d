"""Self-check: whether this engine generates a preset's blocks twice with the same bits.

T0 is a property of a controlled configuration, and breaks silently: a kernel that adds in another
order each time, a counter on the model object, a buffer that two sessions share (paper, section
6.1). So before the first T0 world of a preset a short one is generated from one seed and the same
actions in fresh memory, again, and once more with another world's quanta in between. Where any
digest differs the engine takes no T0 world of that preset; T1 promises less, and stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from services.engine.chores import Chores
from services.engine.device import EngineDevice
from services.engine.making import made, memory_for
from services.engine.memory import Memory
from services.engine.model.dirty import DirtyWorld
from services.engine.models import Loaded
from services.engine.parts import Parts, digested
from services.engine.privateslot import PrivateSlot
from services.engine.quantum import step
from services.engine.world import Action, Frames, WorldModel
from worldline.contract import Contract, DeterminismTier
from worldline.errors import CapacityExhausted, Conflict
from worldline.state.difference import compare
from worldline.state.digest import crc64
from worldline.state.layout import Layout
from worldline.state.manifest import Digests
from worldline.state.tree import plan

_log = structlog.get_logger(__name__)

#: States up to this are checked for two blocks, thrice; larger ones cost whoever waits too long.
SMALL_BYTES = 8 << 20
_SEED, _SEED_BESIDE = 1, 2
_KEYS = (0b0001, 0b0101)


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """What came of it for one preset. `differs` says where two runs parted; empty: nowhere."""

    preset: str
    differs: str = ""


class Plan(NamedTuple):
    """How much is generated."""

    blocks: int
    #: By repetition: whether another world's quanta come in between.
    beside: tuple[bool, ...]


def plan_of(extent_bytes: int, quanta_per_block: int) -> Plan:
    """A small state is checked in full. Of a large one a single block is repeated, beside another
    world where a block has quanta that such a world's could come between. Pure.
    """
    if extent_bytes <= SMALL_BYTES:
        return Plan(2, (False, True))
    return Plan(1, (quanta_per_block > 1,))


def sampled(model: WorldModel) -> WorldModel:
    """What a check generates: the preset's own world; of one that only writes its state, a few
    layers.

    Such a state is gigabytes of caches that one function fills from one generator. To make all of
    it twice would tell no more, and keep whoever opens the first one waiting for its memory.
    """
    return model.sample() if isinstance(model, DirtyWorld) else model


def sample_of(loaded: Loaded) -> Loaded:
    """`sampled`, laid out."""
    model = sampled(loaded.model)
    return loaded if model is loaded.model else Loaded(model, plan(model.state_spec()))


class SelfChecks:
    """The self-checks of one engine: one a preset, when its first world comes."""

    def __init__(self, chores: Chores) -> None:
        self._chores = chores
        self._done: dict[str, SelfCheck] = {}
        #: One at a time: each takes memory for two sessions.
        self._checking = asyncio.Lock()

    @property
    def done(self) -> tuple[SelfCheck, ...]:
        """Every preset that was checked so far."""
        return tuple(self._done[preset] for preset in sorted(self._done))

    async def of(self, loaded: Loaded) -> SelfCheck:
        """What came of the preset's check, which is made now where it was not yet.

        Raises:
            CapacityExhausted: there is no memory for one more session now, or no tensors of the
                model's.
        """
        preset = loaded.model.preset
        async with self._checking:
            known = self._done.get(preset)
            if known is None:
                known = self._done[preset] = await check(self._chores, loaded)
                if known.differs:
                    _log.error("selfcheck.differs", preset=preset, differs=known.differs)
                else:
                    _log.info("selfcheck.equal", preset=preset)
            return known

    async def admit(self, loaded: Loaded, contract: Contract) -> None:
        """Whether a world of that contract may be here.

        Raises:
            Conflict: NOT_DETERMINISTIC: it is at T0, and its preset differed.
            CapacityExhausted: as `of`; it is at T0.
        """
        exact = contract.determinism_tier is DeterminismTier.T0_BITWISE
        try:
            found = await self.of(loaded)
        except CapacityExhausted:
            if exact:
                raise
            return  # another tier promises nothing that would have to be checked
        if found.differs and exact:
            raise Conflict(
                f"this engine does not generate {found.preset} twice with the same bits "
                f"({found.differs}), so it takes no T0 world of it: ask for T1, or allow the drop "
                "(tier_drop_allowed)",
                reason="NOT_DETERMINISTIC",
                field="contract.determinism_tier",
            )


async def check(chores: Chores, loaded: Loaded) -> SelfCheck:
    """Generate, repeat, compare. A chore of which a part is a quantum: worlds that play here go
    first.

    Raises:
        CapacityExhausted: there is no memory for one more session, or no tensors of the model's.
    """
    return await chores.run(_checked(sample_of(loaded), chores.device))


def _checked(loaded: Loaded, device: EngineDevice) -> Parts[SelfCheck]:
    planned = plan_of(loaded.layout.extent_bytes, loaded.model.quanta_per_block)
    expected = yield from _played(loaded, device, planned.blocks, beside=False)
    for beside in planned.beside:
        actual = yield from _played(loaded, device, planned.blocks, beside=beside)
        differs = first_difference(loaded.layout, expected, actual)
        if differs:
            when = " with another world's quanta in between" if beside else ""
            return SelfCheck(loaded.model.preset, f"generated again{when}: {differs}")
    return SelfCheck(loaded.model.preset)


class Generated(NamedTuple):
    """One block as it is compared."""

    frames_digest: int
    digests: Digests


def first_difference(layout: Layout, expected: list[Generated], actual: list[Generated]) -> str:
    """Where two runs of one length parted, in words; empty where they did not. Pure."""
    for index, (one, other) in enumerate(zip(expected, actual, strict=True)):
        found = compare(layout, one.digests, other.digests)
        if found is not None:
            return f"block {index}: {found.message}"
        if one.frames_digest != other.frames_digest:
            return f"block {index}: its frames differ, its state does not"
    return ""


def _played(
    loaded: Loaded, device: EngineDevice, blocks: int, *, beside: bool
) -> Parts[list[Generated]]:
    """A fresh world's blocks. `beside`: another world gets a quantum after each of its own."""
    world = _Throwaway(loaded, device)
    other = _Throwaway(loaded, device) if beside else None
    try:
        yield from world.begin(_SEED)
        may_come = other is not None and (yield from other.begin_if_room())
        generated: list[Generated] = []
        while len(generated) < blocks:
            yield
            block = yield from world.quantum()
            if block is not None:
                generated.append(block)
            elif other is not None and may_come:
                yield
                yield from other.quantum()
        return generated
    finally:
        # Also after a cancellation: the tensors of an owning model are given back.
        _end(world, other)


def _end(*worlds: _Throwaway | None) -> None:
    for world in worlds:
        if world is not None:
            world.end()


class _Throwaway:
    """A world of nobody, in memory of its own. Used in the worker's thread alone."""

    def __init__(self, loaded: Loaded, device: EngineDevice) -> None:
        self._loaded = loaded
        self._device = device
        self._slot: PrivateSlot | None = None
        self._memory: Memory | None = None
        self._block_index = 0
        self._run: Generator[None, None, Frames] | None = None

    def begin(self, seed: int) -> Parts[None]:
        """A fresh state from that seed.

        Raises:
            CapacityExhausted: there is no memory for it, or no tensors of the model's.
        """
        model, layout = self._loaded.model, self._loaded.layout
        self._slot = PrivateSlot(layout.extent_bytes, self._device)
        self._memory = memory_for(model, self._slot, layout)
        yield from made(model, self._memory, seed)

    def begin_if_room(self) -> Parts[bool]:
        """Whether there were tensors for a world beside; a model may own those of one alone."""
        try:
            yield from self.begin(_SEED_BESIDE)
        except CapacityExhausted:
            return False
        return True

    def quantum(self) -> Parts[Generated | None]:
        """The next quantum; what came of the block where it was the last."""
        memory, slot, model = self._memory, self._slot, self._loaded.model
        if memory is None or slot is None:
            raise RuntimeError("begin() comes first")
        if self._run is None:
            memory.changing()
            keys = _KEYS[self._block_index % len(_KEYS)]
            action = Action(self._block_index, keys, mouse_dx=0.25, mouse_dy=-0.5)
            self._run = model.block(memory.state, action, model.denoising_steps)
        frames = step(self._run)
        if frames is not None:
            self._run, self._block_index = None, self._block_index + 1
            memory.settle()
            yield
            layout = yield from memory.storing()
            digests = yield from digested(layout, slot.buffer())
            return Generated(crc64(frames.pixels), digests)
        return None

    def end(self) -> None:
        """Drop the state, and give back what was lent."""
        if self._run is not None:
            self._run.close()
            self._run = None
        memory, self._memory, self._slot = self._memory, None, None
        if memory is not None:
            memory.close()
