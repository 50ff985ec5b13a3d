"""Compress: every cache approximated as a whole: in eight bits, or by matrices of low rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from bench.lossy.caches import cache_leaves
from bench.lossy.handle import Handle, Scene
from bench.lossy.lowrank import factor_elements, low_rank
from bench.lossy.quantise import eight_bit_bytes, fp8, int8

#: Dimensions that share a scale: all of a tensor, or all but its heads and channels.
_SCALES = (("a scale for each tensor", (0, 1, 2, 3)), ("a scale for each channel", (0, 1)))
#: Of the channels of a head.
_RANKS = ((7, 8), (1, 2), (1, 4), (1, 8))


def handles() -> list[Handle]:
    """Both eight-bit formats at both granularities of scale, and four ranks."""
    return [
        *(Handle("int8", name, _eight_bit(int8, shared)) for name, shared in _SCALES),
        *(Handle("fp8", name, _eight_bit(fp8, shared)) for name, shared in _SCALES),
        *(Handle("low rank", f"{a}/{b} of the channels", _ranked(a, b)) for a, b in _RANKS),
    ]


def _eight_bit(
    restore: Callable[[Tensor, Sequence[int]], Tensor], shared: Sequence[int]
) -> Callable[[Scene], int]:
    def apply(scene: Scene) -> int:
        saved = 0
        for leaf in cache_leaves(scene.config, scene.state):
            leaf.values.copy_(restore(leaf.values, shared))
            saved += leaf.size_bytes - eight_bit_bytes(leaf.values.shape, shared)
        return saved

    return apply


def _ranked(numerator: int, denominator: int) -> Callable[[Scene], int]:
    """A head of a tensor is a matrix, positions by channels; kept where nothing is saved."""

    def apply(scene: Scene) -> int:
        saved = 0
        for leaf in cache_leaves(scene.config, scene.state):
            heads, channels = leaf.values.shape[2:]
            rows = leaf.values.shape[0] * leaf.values.shape[1]
            rank = channels * numerator // denominator
            spared = heads * (rows * channels - factor_elements(rows, channels, rank))
            if spared > 0 and rank < rows:
                # (head, position, channel) and back.
                by_head = leaf.values.reshape(rows, heads, channels).transpose(0, 1)
                near = low_rank(by_head, rank).transpose(0, 1)
                leaf.values.copy_(near.reshape(leaf.values.shape))
                saved += spared * leaf.values.element_size()
        return saved

    return apply
