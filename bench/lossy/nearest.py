"""Nearest: which pieces of one state resemble pieces of another session's most. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Match:
    """A piece's nearest candidate."""

    candidate: int
    #: Euclidean, of the norm of the piece; 0 for the same bits, infinite for a piece of zeros.
    distance: float


def nearest(piece: Tensor, candidates: Sequence[Tensor]) -> Match:
    """The candidate at the least distance; the first of those that are equally near."""
    exact = piece.float()
    distances = [float(torch.linalg.vector_norm(exact - each.float())) for each in candidates]
    best = min(range(len(distances)), key=distances.__getitem__)
    if same_bits(piece, candidates[best]):
        return Match(best, 0.0)
    norm = float(torch.linalg.vector_norm(exact))
    return Match(best, distances[best] / norm if norm else float("inf"))


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two bfloat16 tensors hold the same bits: -0 is not 0."""
    return torch.equal(one.contiguous().view(torch.int16), other.contiguous().view(torch.int16))
