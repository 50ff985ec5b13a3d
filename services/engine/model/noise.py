"""Noise: draws from a generator whose state is part of the session."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from worldline.errors import InvalidInput

LEAF = "noise.generator"

#: The mt19937 of torch's CPU generator: 624 words of 32 bits, each in 8 bytes, behind a header.
_WORDS = 624
_WORDS_AT_BYTES = 24
_DOMAIN = b"worldline.branch.1\0"


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


def split_noise(leaf: Tensor, branch: int) -> None:
    """Turn the generator in `leaf`, a copy of the parent's, into that of a branch of this number.

    Equal parents and numbers give equal generators; any others share nothing. All 19,968 bits come
    from SHAKE-256 of the parent's state and the number: `manual_seed` keeps 32 bits of its seed,
    among which 77,000 branches would probably hold a pair.

    Raises:
        InvalidInput: the leaf does not hold a generator's state.
    """
    parent = SessionNoise(leaf).generator.get_state().numpy().tobytes()
    drawn = hashlib.shake_256(_DOMAIN + branch.to_bytes(8, "little") + parent).digest(_WORDS * 4)
    words = np.frombuffer(drawn, dtype="<u4").astype("<u8")
    # As freshly seeded: no word drawn yet, no second normal kept.
    state = torch.Generator().manual_seed(0).get_state()
    state[_WORDS_AT_BYTES : _WORDS_AT_BYTES + words.nbytes] = torch.from_numpy(words.view("u1"))
    leaf.copy_(state)
