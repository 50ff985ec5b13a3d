"""Tensors: the payload's leaves as torch tensors, for peers that know nothing smaller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from bench.payload import occupied
from bench.side import Surroundings
from worldline.state.harvest import TORCH_DTYPES


def tensors(at: Surroundings) -> dict[str, torch.Tensor]:
    """A view of every tensor by its path, in the layout's order; nothing is copied.

    Each has a storage of its own, as tensors that were allocated one by one have.
    """
    found = {}
    for leaf in occupied(at.layout):
        dtype = TORCH_DTYPES[leaf.dtype]
        count = leaf.size_bytes // dtype.itemsize
        flat = torch.frombuffer(at.view, dtype=dtype, count=count, offset=leaf.offset_bytes)
        found[leaf.path] = flat.view(leaf.shape)
    return found


def bytes_of(at: Surroundings, loaded: Mapping[str, torch.Tensor]) -> Iterator[memoryview]:
    """The bytes of what a target has loaded, in the layout's order."""
    for leaf in occupied(at.layout):
        flat = loaded[leaf.path].cpu().contiguous().view(-1)
        yield memoryview(flat.view(torch.uint8).numpy())
