"""World: what an engine author implements, and the values that pass between world and engine.

To add a model, write a class with the members of `WorldModel` in a package of your own, and start
the engine with `--models my_pkg:MyWorld` (docs/engines.md). The engine owns the memory: it
allocates what `state_spec` describes in a slot and hands the model a tree of views. The model
object itself holds weights and nothing else, so one object serves every session of its preset. A
model that must own the memory has the members of `OwnsState` too, one whose sessions branch those
of `SplitsNoise`, one whose states are large those of `InParts`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from worldline.errors import InvalidInput

#: A nested tree of dicts and lists with tensors (views into a slot) and Python scalars at its
#: leaves. Scalars are replaced in place: they travel in the manifest.
StateTree = dict[str, Any]

KEYBOARD_BITS = 4


@dataclass(frozen=True)
class Action:
    """What the client did during one block. Cannot be invalid.

    `keyboard` is a bit set: 0 forward (W), 1 back (S), 2 left (A), 3 right (D). Mouse motion is
    in [-1, 1], rounded to float32.
    """

    block_index: int
    keyboard: int = 0
    mouse_dx: float = 0.0
    mouse_dy: float = 0.0

    def __post_init__(self) -> None:
        if self.block_index < 0:
            raise InvalidInput("action.block_index is negative", field="action.block_index")
        if not 0 <= self.keyboard < 1 << KEYBOARD_BITS:
            raise InvalidInput(
                f"action.keyboard is {self.keyboard}: only bits 0 to {KEYBOARD_BITS - 1} mean keys",
                field="action.keyboard",
            )
        for name in ("mouse_dx", "mouse_dy"):
            value: float = getattr(self, name)
            if not math.isfinite(value) or not -1.0 <= value <= 1.0:
                raise InvalidInput(
                    f"action.{name} is {value}: must be in [-1, 1]", field=f"action.{name}"
                )
            # As it crosses the wire: an action means the same before and after.
            object.__setattr__(self, name, struct.unpack("<f", struct.pack("<f", value))[0])


@dataclass(frozen=True)
class Frames:
    """The RGB frames of one block: uint8, frame-major, count x height x width x 3."""

    count: int
    height: int
    width: int
    pixels: bytes


#: A state-only world shows nothing.
NO_FRAMES = Frames(0, 0, 0, b"")


class WorldModel(Protocol):
    """A model that generates one block at a time from a state tree it does not own."""

    @property
    def preset(self) -> str:
        """The name clients open it by."""

    @property
    def quanta_per_block(self) -> int:
        """Model passes in a block of full quality; each step that is left out is one less."""

    @property
    def denoising_steps(self) -> int:
        """Steps behind a block of full quality: the top of the ladder whose bottom is 1."""

    def warm(self) -> None:
        """Pay on private memory what the first block costs once in a process."""

    def state_spec(self) -> StateTree:
        """The tree that one session needs: `TensorSpec` leaves, and the scalars' first values.

        Everything that decides the next frame must be in it: caches, counters, flags, the noise
        generator's state, the decoder's cache. What is not in it does not survive a move.
        """

    def initialise(self, state: StateTree, seed: int) -> None:
        """Write the state of a fresh session into `state`, every byte of it."""

    def block(self, state: StateTree, action: Action, steps: int) -> Generator[None, None, Frames]:
        """Generate one block in place; `yield` after every quantum but the last.

        `steps`, from 1 to `denoising_steps`, is the quality of this block alone: fewer are
        faster, and what they write into the state is what later blocks go on from. Only a
        contract that allows it makes the engine ask for fewer. Between yields the engine may run
        other sessions. It never freezes, moves or digests a state between the first quantum of a
        block and its return.

        Raises:
            InvalidInput: the state is not one that this model wrote, `leaf` says where; or
                `steps` is out of range (`check_steps`).
        """


def quanta_of(model: WorldModel, steps: int) -> int:
    """Quanta of a block of `steps`: one fewer for each step left out, never less than one."""
    return max(1, model.quanta_per_block - (model.denoising_steps - steps))


def check_steps(steps: int, denoising_steps: int) -> None:
    """The ladder's bounds.

    Raises:
        InvalidInput: `steps` is below 1 or above the model's own.
    """
    if not 1 <= steps <= denoising_steps:
        raise InvalidInput(
            f"a block of {steps} denoising steps is asked for: this model has 1 to "
            f"{denoising_steps}",
            field="steps",
        )


@runtime_checkable
class OwnsState(Protocol):
    """Beside `WorldModel`, for a model that keeps the state in tensors of its own.

    For tensors that cannot lie in a slot, or whose addresses somebody holds: a CUDA graph, a
    compiled function. The engine then copies the state into the slot when somebody wants to read it
    (a freeze, a digest), and into the tensors when it arrives. No address changes.
    """

    def lend(self) -> StateTree:
        """Tensors for one more session: a tree as `state_spec` describes it, on its device.

        Strides and first contents are the model's business. `block` gets this very tree until
        `take_back`; the engine writes into its tensors and never replaces one.

        Raises:
            CapacityExhausted: all that the model has are lent.
        """

    def take_back(self, state: StateTree) -> None:
        """The session is gone, and nobody uses its tree any more. Another thread than `lend`'s."""


@runtime_checkable
class InParts(Protocol):
    """Beside `WorldModel`, for a model whose `warm` or whose `initialise` takes long.

    What runs between two yields is never interrupted: without this, other sessions of the engine
    wait for the whole of it. Some milliseconds are a good part.
    """

    def warming(self) -> Generator[None, None, None]:
        """`warm`, in parts."""

    def initialising(self, state: StateTree, seed: int) -> Generator[None, None, None]:
        """`initialise`, in parts; the two write the same. Nobody reads the state meanwhile."""


@runtime_checkable
class SplitsNoise(Protocol):
    """Beside `WorldModel`, for a model whose sessions may branch, each with noise of its own.

    A session of any other model is only forked with its parent's noise.
    """

    def split(self, state: StateTree, branch: int) -> None:
        """Give `state`, a copy of its parent's, the noise of the branch of this number.

        A pure function of the two, so that a fork can be replayed; nothing but the generator's
        leaves may change, and no two numbers may lead to the same noise.
        """
