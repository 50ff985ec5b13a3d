"""What a tree may hold, and what is refused by name because it cannot move whole."""

from __future__ import annotations

import enum
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tests.unit.state.strategies import Record, Slotted, moved, same
from worldline.errors import InvalidInput
from worldline.state.tree import (
    TensorSpec,
    layout_of,
    plan,
    same_device,
)


class Pair(NamedTuple):
    a: int
    b: int


class DynamicCache:
    """As cache classes of model libraries look: attributes, no protocol."""

    def __init__(self) -> None:
        self.layers = [torch.zeros(1)]


class Colour(enum.Enum):
    RED = 1


@dataclass
class Computed:
    x: int

    def __post_init__(self) -> None:
        self.hidden = torch.zeros(1)


@dataclass
class DictLike(dict):  # type: ignore[type-arg]
    x: int = 0


@dataclass
class Defaulted:
    x: int
    y: list[int] = field(default_factory=list)


class Subclass(torch.Tensor):
    pass


def cyclic() -> list[Any]:
    loop: list[Any] = [1]
    loop.append(loop)
    return loop


def shrunk() -> torch.Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():  # torch means to drop these dtypes; until then they exist
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.zeros(2), 0.5, 0, torch.qint8)


def unset() -> Defaulted:
    value = Defaulted(1)
    del value.y
    return value


REFUSED: dict[str, Callable[[], object]] = {
    "named tuple": lambda: Pair(1, 2),
    "ordered dict": lambda: OrderedDict(a=1),
    "default dict": lambda: defaultdict(int),
    "set": lambda: {1},
    "cache class": DynamicCache,
    "module": lambda: torch.nn.Linear(1, 1),
    "enum": lambda: Colour.RED,
    "numpy scalar": lambda: np.float64(1),
    "numpy array": lambda: np.zeros(1),
    "function": lambda: len,
    "dataclass type": lambda: Record,
    "dataclass with more": lambda: Computed(1),
    "dataclass of a builtin": lambda: DictLike(),
    "dataclass with less": unset,
    "generator": lambda: torch.Generator(),
    "parameter": lambda: torch.nn.Parameter(torch.zeros(1)),
    "subclass": lambda: torch.zeros(1).as_subclass(Subclass),
    "gradient": lambda: torch.zeros(1, requires_grad=True),
    "sparse": lambda: torch.zeros(2, 2).to_sparse(),
    "meta": lambda: torch.zeros(2, device="meta"),
    "conjugate": lambda: torch.ones(2, dtype=torch.complex64).conj(),
    "negative": lambda: torch.ones(2, dtype=torch.complex64).conj().imag,
    "quantized": quantized,
    "sub-byte": lambda: torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "storage gone": shrunk,
    "cycle": cyclic,
    "bad key": lambda: {(1, 2): 3},
    "bool key": lambda: {True: 3},
    "surrogate": lambda: "\ud800",
    "spec of nonsense": lambda: TensorSpec(torch.uint8, (-1,)),
}
NAMED = {"cycle": "x[0].y[1]", "dataclass with more": "x[0].y"}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_move_whole_does_not_move(case: str) -> None:
    tree = {"fine": torch.zeros(1), "x": [{"y": REFUSED[case]()}]}
    with pytest.raises(InvalidInput) as caught:
        plan(tree)
    assert caught.value.leaf == NAMED.get(case, "x[0].y")
    with pytest.raises(InvalidInput):
        layout_of(tree, torch.zeros(8, dtype=torch.uint8))


def test_one_container_in_two_places_is_refused() -> None:
    shared = [1]
    with pytest.raises(InvalidInput) as caught:
        plan({"a": shared, "b": {"c": shared}})
    assert caught.value.leaf == "b.c"
    frozen = Slotted(1)
    assert same(moved([frozen, frozen, (), ()])[2], [frozen, frozen, (), ()])


def test_nesting_is_bounded() -> None:
    deep: object = 1
    for _ in range(25):
        deep = [deep]
    with pytest.raises(InvalidInput) as caught:
        plan(deep)
    assert caught.value.leaf == "[0]" * 24


def test_a_leaf_on_another_device_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput) as caught:
        plan([torch.zeros(1), {"k": torch.zeros(1)}], device="cuda:0")
    assert caught.value.leaf == "[0]"
    assert "cpu" in caught.value.message
    assert "cuda:0" in caught.value.message
    assert plan([torch.zeros(1)], device="cpu") == plan([torch.zeros(1)])


@pytest.mark.parametrize(
    ("here", "wanted", "same"),
    [
        ("cpu", "cpu", True),
        ("cpu", "cpu:0", True),
        ("cpu", "cuda", False),
        ("cuda:0", "cpu", False),
        ("cuda:0", "cuda", True),
        ("cuda:0", "cuda:0", True),
        ("cuda:0", "cuda:1", False),
        ("cuda:0", "xpu:0", False),
    ],
)
def test_devices_are_told_apart(here: str, wanted: str, same: bool) -> None:
    assert same_device(torch.device(here), torch.device(wanted)) is same
