"""Measuring: blocks of a throwaway session, timed, so that a row is there before a promise."""

from __future__ import annotations

import time
from collections.abc import Generator
from time import perf_counter as clock
from typing import NamedTuple, cast

from services.engine.chores import Chores
from services.engine.device import EngineDevice
from services.engine.making import initialised
from services.engine.models import Loaded
from services.engine.parts import Parts
from services.engine.privateslot import private_bytes
from services.engine.profile import Profiles
from services.engine.quantum import decoded, step
from services.engine.world import Action, Frames, OwnsState, StateTree
from worldline.admissibility.profile_row import RequestShape
from worldline.state.digest import crc64
from worldline.state.tree import materialize

#: The first block has the transient and a shorter window than all others: it is run, not timed.
BLOCKS_UNTIMED = 1
#: Two of the window's full length. More would say more, and keep whoever waits from opening.
BLOCKS_TIMED = 2


class _Timed(NamedTuple):
    """One quantum: what it took, and whether it ended its block."""

    elapsed_ms: float
    closing: bool


async def measure(chores: Chores, loaded: Loaded, shape: RequestShape, profiles: Profiles) -> None:
    """Learn the row of that shape.

    It is a chore of which a part is a quantum: worlds that play here go first, and what they run
    in between is in no time that is measured. What bounds the wait is `chore.WAIT_MAX_S` a quantum.

    Raises:
        CapacityExhausted: the model has no tensors for one more session, or its device no memory.
    """
    bound = profiles.binding
    timed = await chores.run(_timed(loaded, shape, chores.device))
    if profiles.binding != bound:
        return  # some of them ran where this engine may run no more
    now = time.monotonic()
    for quantum in timed:
        profiles.add(shape, loaded.model, quantum.elapsed_ms, closing=quantum.closing, now=now)


def _timed(loaded: Loaded, shape: RequestShape, device: EngineDevice) -> Parts[list[_Timed]]:
    world, timed = _Throwaway(loaded, shape, device), list[_Timed]()
    try:
        yield from world.begin()
        for block_index in range(BLOCKS_UNTIMED + BLOCKS_TIMED):
            closing = False
            while not closing:
                yield
                quantum = world.quantum()
                closing = quantum.closing
                if block_index >= BLOCKS_UNTIMED:
                    timed.append(quantum)
    finally:
        world.end()
    return timed


class _Throwaway:
    """A session of nobody, in memory of its own. Used in the worker's thread alone."""

    def __init__(self, loaded: Loaded, shape: RequestShape, device: EngineDevice) -> None:
        self._model = loaded.model
        self._layout = loaded.layout
        self._shape = shape
        self._device = device
        self._state: StateTree | None = None
        self._lent = False
        self._block_index = 0
        self._run: Generator[None, None, Frames] | None = None

    def begin(self) -> Parts[None]:
        """A fresh state, where the model's states are."""
        if isinstance(self._model, OwnsState):
            self._state, self._lent = self._model.lend(), True
        else:
            buffer = private_bytes(self._layout.extent_bytes, self._device)
            self._state = cast(StateTree, materialize(self._layout, buffer))
        yield from initialised(self._model, self._state, seed=0)

    def quantum(self) -> _Timed:
        """The next quantum.

        Timed from the first instruction until the device is done, and with a block's last one also
        what is sent of it: as long as nobody else can have the worker.
        """
        if self._state is None:
            raise RuntimeError("begin() comes first")
        if self._run is None:
            action = Action(self._block_index)
            self._run = self._model.block(self._state, action, self._model.denoising_steps)
        started = clock()
        finished = step(self._run)
        self._device.settle()
        if finished is not None:
            crc64(decoded(finished, self._shape.decode_tier).pixels)
            self._run, self._block_index = None, self._block_index + 1
        return _Timed((clock() - started) * 1e3, finished is not None)

    def end(self) -> None:
        """Give the state back."""
        if self._run is not None:
            self._run.close()
            self._run = None
        state, self._state = self._state, None
        if state is not None and self._lent and isinstance(self._model, OwnsState):
            self._model.take_back(state)
