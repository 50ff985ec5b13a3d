"""A tiny world that keeps its states in tensors of its own, at addresses that never change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from services.engine.model.causal import CausalWorld
from services.engine.model.config import TINY
from services.engine.model.weights import Weights, build_weights
from services.engine.models import Loaded
from services.engine.world import StateTree
from tests.unit.engine.support import Harness
from worldline.errors import CapacityExhausted
from worldline.state.tree import TensorSpec, plan


class OwningWorld(CausalWorld):
    """A `WorldModel` that `OwnsState`: `sets` trees, made once, lent again and again."""

    def __init__(self, weights: Weights, sets: int = 2) -> None:
        super().__init__(weights)
        self.free = [grown(self.state_spec(), fresh) for _ in range(sets)]
        self.lent: list[StateTree] = []

    def lend(self) -> StateTree:
        """Whatever the last session left is spoilt: a fresh one must not rely on it."""
        if not self.free:
            raise CapacityExhausted("every set of tensors is lent", reason="TENSORS_LENT")
        state = self.free.pop()
        self.lent.append(state)
        for tensor in tensors_of(state):
            tensor.view(torch.uint8).fill_(0xA5)
        return state

    def take_back(self, state: StateTree) -> None:
        index = next(at for at, lent in enumerate(self.lent) if lent is state)
        self.free.append(self.lent.pop(index))


def owning_world(sets: int = 2) -> OwningWorld:
    return OwningWorld(build_weights(TINY, 0, torch.device("cpu")), sets)


def fresh(spec: TensorSpec) -> torch.Tensor:
    """A tensor that lies in a larger one, behind a gap."""
    size = torch.Size(spec.shape).numel()
    return torch.zeros(size + 64, dtype=spec.dtype)[64:].view(spec.shape)


def grown(tree: Any, make: Callable[[TensorSpec], torch.Tensor]) -> Any:
    """The tree with a tensor for every spec."""
    if isinstance(tree, TensorSpec):
        return make(tree)
    if isinstance(tree, dict):
        return {key: grown(child, make) for key, child in tree.items()}
    if isinstance(tree, list):
        return [grown(child, make) for child in tree]
    return tree


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Every tensor of a tree, in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [tensor for child in children for tensor in tensors_of(child)]


def addresses(tree: Any) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors_of(tree)]


def make_owning(harness: Harness, sets: int = 2) -> OwningWorld:
    """From now on `tiny` keeps its states in tensors of its own on this engine."""
    model = owning_world(sets)
    harness.engine._models._loaded["tiny"] = Loaded(model, plan(model.state_spec()))
    return model
