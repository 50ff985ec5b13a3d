"""Strata: which single bits of the caches a battery flips, chosen from a seed.

A round has twelve flips in the part of the attention windows that the next block overwrites before
it reads anything, and twelve in the part that it reads: four sign, four exponent and four mantissa
bits each, in the keys and the values of the self-attention cache and in both action caches, at the
first, the last and two inner positions of the part. Six more lie outside the windows. Where the
parts begin and end is the model's own word (`services.engine.model.window.kept`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from bench.significance import SIGNIFICANCE
from services.engine.model.config import WorldConfig
from services.engine.model.window import Cache, kept
from services.engine.world import StateTree
from worldline.errors import InvalidInput

#: `overwritten` and `read` are of a window; `conditioning` is the cross-attention cache, written
#: once and read by every block; `unwired` are the action caches that nothing writes or reads.
Part = Literal["overwritten", "read", "conditioning", "unwired"]
WINDOW_PARTS: tuple[Part, ...] = ("overwritten", "read")
MEANINGS = SIGNIFICANCE["bfloat16"]
#: Caches with a window, and which of their two tensors; each class of bits visits all four.
_PLACES = (("kv_cache", "k"), ("kv_cache", "v"), ("kv_cache_mouse", ""), ("kv_cache_keyboard", ""))
_ACTION_CACHES = ("kv_cache_mouse", "kv_cache_keyboard")


@dataclass(frozen=True, slots=True)
class CacheFlip:
    """One bit of one element of a cache."""

    part: Part
    meaning: str
    cache: str
    layer: int
    #: `k` or `v`.
    tensor: str
    #: (batch or token, window position, head, channel).
    index: tuple[int, int, int, int]
    #: 0 is the lowest of the mantissa, 15 the sign.
    bit: int

    def __str__(self) -> str:
        return f"{self.cache}[{self.layer}].{self.tensor}{list(self.index)} bit {self.bit}"

    def apply(self, state: StateTree) -> None:
        """Change the bit in place."""
        words = state[self.cache][self.layer][self.tensor].view(torch.int16)
        word = int(words[self.index]) & 0xFFFF ^ 1 << self.bit
        words[self.index] = word - (1 << 16) if word >> 15 else word


def flips(config: WorldConfig, state: StateTree, seed: int, rounds: int = 1) -> list[CacheFlip]:
    """`rounds` times thirty flips for a state at a block boundary.

    Raises:
        InvalidInput: a window is not full: there is nothing yet that the next block drops.
    """
    return list(_Deck(config, state, seed).draw(rounds))


class _Deck:
    """Layers and heads are dealt like cards: all of them come before one comes again."""

    def __init__(self, config: WorldConfig, state: StateTree, seed: int) -> None:
        self._config, self._state = config, state
        self._dice = random.Random(seed)
        self._piles: dict[tuple[str, range], list[int]] = {}

    def draw(self, rounds: int) -> Iterator[CacheFlip]:
        for _ in range(rounds):
            for part in WINDOW_PARTS:
                for meaning in MEANINGS:
                    yield from self._of_windows(part, meaning)
            for meaning in MEANINGS:
                yield self._conditioning(meaning)
            for meaning in MEANINGS:
                yield self._unwired(meaning)

    def _of_windows(self, part: Part, meaning: str) -> Iterator[CacheFlip]:
        edges = ["first", "inner", "inner", "last"]
        self._dice.shuffle(edges)
        for (cache, tensor), edge in zip(_PLACES, edges, strict=True):
            wired = self._config.layers if cache == "kv_cache" else self._config.action_layers
            layer = self._deal("layer", range(wired))
            positions = self._positions(self._state[cache][layer], cache, part)
            position = {"first": positions[0], "last": positions[-1]}.get(
                edge, self._dice.choice(positions)
            )
            yield self._flip(part, meaning, cache, layer, tensor or self._either(), position)

    def _positions(self, cache: Cache, name: str, part: Part) -> range:
        capacity, end = int(cache["k"].shape[1]), int(cache["local_end_index"])
        frames = self._config.frames_per_block
        count = frames * self._config.tokens_per_frame if name == "kv_cache" else frames
        read = kept(end, capacity, count)
        if end < capacity or not read.start:
            raise InvalidInput(
                f"{end} of {capacity} positions of {name} are written: play more blocks first",
                field="blocks",
            )
        return read if part == "read" else range(read.start)

    def _conditioning(self, meaning: str) -> CacheFlip:
        layer = self._deal("layer", range(self._config.layers))
        position = self._dice.randrange(self._config.first_frame_tokens)
        return self._flip(
            "conditioning", meaning, "crossattn_cache", layer, self._either(), position
        )

    def _unwired(self, meaning: str) -> CacheFlip:
        layer = self._deal("layer", range(self._config.action_layers, self._config.layers))
        position = self._dice.randrange(self._config.window_frames)
        cache = self._dice.choice(_ACTION_CACHES)
        return self._flip("unwired", meaning, cache, layer, self._either(), position)

    def _flip(
        self, part: Part, meaning: str, cache: str, layer: int, tensor: str, position: int
    ) -> CacheFlip:
        batch, _, heads, channels = self._state[cache][layer][tensor].shape
        index = (
            self._dice.randrange(batch),
            position,
            self._deal("head", range(heads)),
            self._dice.randrange(channels),
        )
        bit = self._dice.choice(MEANINGS[meaning])
        return CacheFlip(part, meaning, cache, layer, tensor, index, bit)

    def _either(self) -> str:
        return self._dice.choice("kv")

    def _deal(self, kind: str, among: range) -> int:
        pile = self._piles.setdefault((kind, among), [])
        if not pile:
            pile.extend(among)
            self._dice.shuffle(pile)
        return pile.pop()
