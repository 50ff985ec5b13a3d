"""Noise: draws from a generator whose state is part of the session."""

from __future__ import annotations

import torch
from torch import Tensor

from worldline.errors import InvalidInput

LEAF = "noise.generator"


class SessionNoise:
    """Draws for one block. `store` afterwards, or the next block repeats them.

    The generator is torch's CPU one whatever the device: its state is the same bytes everywhere,
    and the draws are small.

    Raises:
        InvalidInput: the leaf does not hold a generator's state.
    """

    def __init__(self, leaf: Tensor) -> None:
        self._leaf = leaf
        self.generator = torch.Generator()
        try:
            self.generator.set_state(leaf.to("cpu", copy=True))
        except (RuntimeError, TypeError) as error:
            raise InvalidInput(f"{LEAF} holds no generator state: {error}", leaf=LEAF) from error

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Standard normal float32, on the leaf's device."""
        return torch.randn(shape, generator=self.generator).to(self._leaf.device)

    def store(self) -> None:
        """Write the advanced state back into the leaf."""
        self._leaf.copy_(self.generator.get_state())


def seed_noise(leaf: Tensor, seed: int) -> torch.Generator:
    """Put a freshly seeded generator into `leaf`; returns it for the session's first draws."""
    generator = torch.Generator().manual_seed(seed)
    leaf.copy_(generator.get_state())
    return generator
