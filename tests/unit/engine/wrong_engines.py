"""Engines that are wrong on purpose, one fault each: what a conformance suite must find.

Every class is the example engine but for its fault.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator
from typing import Any

import torch
from my_world import FRAMES_PER_BLOCK, TOKENS, MyWorld
from torch import Tensor

from services.engine.world import Action, Frames, StateTree
from worldline.errors import CapacityExhausted
from worldline.state.tree import TensorSpec
from worldline.state.view import copy_bits


class Right(MyWorld):
    """No fault."""

    preset = "right"


class ForgottenGenerator(MyWorld):
    """The noise comes from a generator of the object, which no state captures."""

    preset = "forgotten-generator"

    def __init__(self, weights_seed: int, device: torch.device) -> None:
        super().__init__(weights_seed, device)
        self.hidden = torch.Generator()

    def initialise(self, state: StateTree, seed: int) -> None:
        super().initialise(state, seed)
        self.hidden.manual_seed(seed)

    def _noise(self, generator: torch.Generator) -> Tensor:
        return super()._noise(self.hidden)


class HiddenCounter(MyWorld):
    """Counts blocks on the object, and lets the count decide."""

    preset = "hidden-counter"

    def __init__(self, weights_seed: int, device: torch.device) -> None:
        super().__init__(weights_seed, device)
        self.generated = 0

    def initialise(self, state: StateTree, seed: int) -> None:
        super().initialise(state, seed)
        self.generated = 0

    def _decoded(self, latents: Tensor) -> Frames:
        self.generated += 1
        return super()._decoded(latents + 0.1 * self.generated)


class GlobalNoise(MyWorld):
    """Draws from torch's global generator."""

    preset = "global-noise"

    def _noise(self, generator: torch.Generator) -> Tensor:
        return torch.randn(FRAMES_PER_BLOCK, TOKENS, self.query.shape[0])


class Replacing(MyWorld):
    """Puts a tensor of its own where a leaf was."""

    preset = "replacing"

    def block(self, state: StateTree, action: Action, steps: int) -> Generator[None, None, Frames]:
        shown = yield from super().block(state, action, steps)
        state["window"] = state["window"] * 1.0
        return shown


class Clockwork(MyWorld):
    """Lets the hour of the wall clock decide: hardly ever another from block to block."""

    preset = "clockwork"

    def _decoded(self, latents: Tensor) -> Frames:
        return super()._decoded(latents + 0.1 * (time.time() // 3_600 % 24))


class Addressed(MyWorld):
    """Lets the address of a leaf decide."""

    preset = "addressed"

    def block(self, state: StateTree, action: Action, steps: int) -> Generator[None, None, Frames]:
        # Spread over all bits, so that two addresses hardly ever decide alike.
        spread = state["window"].data_ptr() // 64 * 2_654_435_761 % 2**24
        self.actions[0, 0] = spread / 2**24
        return (yield from super().block(state, action, steps))


class SharedScratch(MyWorld):
    """Keeps the latents of the block in flight on the object, where another session's come."""

    preset = "shared-scratch"
    scratch: Tensor

    def _denoised(self, latents: Tensor, window: Tensor, steering: Tensor) -> Tensor:
        self.scratch = super()._denoised(latents, window, steering)
        return self.scratch

    def _decoded(self, latents: Tensor) -> Frames:
        return super()._decoded(self.scratch)


class HalfWritten(MyWorld):
    """Leaves what the slot held in a part of a leaf."""

    preset = "half-written"

    def initialise(self, state: StateTree, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        state["window"][1:].copy_(torch.randn(state["window"][1:].shape, generator=generator))
        state["generator"].copy_(generator.get_state())
        state["block_index"] = 0


class SeedIgnored(MyWorld):
    """Every session begins alike."""

    preset = "seed-ignored"

    def initialise(self, state: StateTree, seed: int) -> None:
        super().initialise(state, 0)


class BadFrames(MyWorld):
    """Says more frames than there are."""

    preset = "bad-frames"

    def _decoded(self, latents: Tensor) -> Frames:
        shown = super()._decoded(latents)
        return Frames(shown.count + 1, shown.height, shown.width, shown.pixels)


class NoFrames(MyWorld):
    """Returns pixels where frames belong."""

    preset = "no-frames"

    def _decoded(self, latents: Tensor) -> Any:
        return super()._decoded(latents).pixels


class AnyBlock(MyWorld):
    """Generates whatever block it is asked for."""

    preset = "any-block"

    def block(self, state: StateTree, action: Action, steps: int) -> Generator[None, None, Frames]:
        state["block_index"] = action.block_index
        return (yield from super().block(state, action, steps))


class FlatLadder(MyWorld):
    """Always takes all its steps."""

    preset = "flat-ladder"

    def block(self, state: StateTree, action: Action, steps: int) -> Generator[None, None, Frames]:
        return (yield from super().block(state, action, self.denoising_steps))


class HollowStep(MyWorld):
    """Has one quantum for every step, in one of which nothing happens."""

    preset = "hollow-step"
    denoising_steps = MyWorld.denoising_steps + 1
    quanta_per_block = MyWorld.quanta_per_block + 1

    def block(self, state: StateTree, action: Action, steps: int) -> Generator[None, None, Frames]:
        if not 1 <= steps <= self.denoising_steps:
            yield from super().block(state, action, 0)
        if steps == self.denoising_steps:
            yield
        run = MyWorld(0, self.device).block(state, action, min(steps, 3))
        return (yield from run)


class GradientsOff(MyWorld):
    """Leaves gradients off across a yield."""

    preset = "gradients-off"

    def block(self, state: StateTree, action: Action, steps: int) -> Generator[None, None, Frames]:
        with torch.no_grad():
            return (yield from super().block(state, action, steps))


class Unread(MyWorld):
    """Has a leaf that nobody reads."""

    preset = "unread"

    def state_spec(self) -> StateTree:
        return {**super().state_spec(), "spare": [TensorSpec(torch.bfloat16, (4,))] * 2}

    def initialise(self, state: StateTree, seed: int) -> None:
        super().initialise(state, seed)
        for leaf in state["spare"]:
            leaf.zero_()


class Deaf(MyWorld):
    """Goes on from a state of its own, whatever it is given."""

    preset = "deaf"

    def block(self, state: StateTree, action: Action, steps: int) -> Generator[None, None, Frames]:
        yield
        state["block_index"] = action.block_index + 1
        return Frames(1, 1, 1, b"abc")


class OtherTree(MyWorld):
    """Describes another tree every time it is asked."""

    preset = "other-tree"
    asked = 0

    def state_spec(self) -> StateTree:
        self.asked += 1
        return {**super().state_spec(), "more": TensorSpec(torch.uint8, (self.asked,))}

    def warm(self) -> None: ...


class NoTree(MyWorld):
    """Has something in its state that cannot be moved."""

    preset = "no-tree"

    def state_spec(self) -> StateTree:
        return {**super().state_spec(), "seen": {1, 2}}

    def warm(self) -> None: ...


class ReadsWeights(MyWorld):
    """Reads its weights from a file, and does not say which."""

    preset = "reads-weights"

    def __init__(self, weights_seed: int, device: torch.device) -> None:
        super().__init__(weights_seed, device)
        with open(os.environ["WRONG_ENGINES_WEIGHTS"], "rb") as file:
            self.query += len(file.read())


class Dying(MyWorld):
    """Takes its process along."""

    preset = "dying"

    def state_spec(self) -> StateTree:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    def warm(self) -> None: ...


class Repacking(MyWorld):
    """No fault: stands for a library that makes new tensors at every step, and owns them all."""

    preset = "repacking"

    def block(self, state: StateTree, action: Action, steps: int) -> Generator[None, None, Frames]:
        theirs = {**state, "window": state["window"].clone()}
        shown = yield from super().block(theirs, action, steps)
        theirs["window"] = torch.cat([theirs["window"][:1], theirs["window"][1:]])
        copy_bits(theirs["window"], state["window"])
        state["block_index"] = theirs["block_index"]
        return shown


class Owning(MyWorld):
    """No fault: it keeps the state in tensors of its own, of other strides, two sets of them."""

    preset = "owning"
    sets = 2

    def __init__(self, weights_seed: int, device: torch.device) -> None:
        super().__init__(weights_seed, device)
        self.free = [self._made() for _ in range(self.sets)]

    def _made(self) -> StateTree:
        spec = self.state_spec()
        turned = torch.empty(tuple(reversed(spec["window"].shape))).permute(2, 1, 0)
        return {
            "window": turned,
            "generator": torch.empty(spec["generator"].shape, dtype=torch.uint8),
            "block_index": 0,
        }

    def lend(self) -> StateTree:
        if not self.free:
            raise CapacityExhausted("every set of tensors is lent")
        return self.free.pop()

    def take_back(self, state: StateTree) -> None:
        self.free.append(state)


class OwningOne(Owning):
    """Has tensors for one session only."""

    preset = "owning-one"
    sets = 1


class OwningHalfWritten(Owning):
    """Leaves what its tensors held when they were lent."""

    preset = "owning-half-written"

    def initialise(self, state: StateTree, seed: int) -> None:
        HalfWritten.initialise(self, state, seed)  # type: ignore[arg-type]


class OwningForgetful(Owning):
    """Keeps the noise of a session on the object, beside tensors of its own."""

    preset = "owning-forgetful"
    drawn = 0.0

    def _decoded(self, latents: Tensor) -> Frames:
        self.drawn += 1.0
        return super()._decoded(latents + self.drawn)
