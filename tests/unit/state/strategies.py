"""Random state trees of every dtype, kind of view, alias and container, and their comparison."""

from __future__ import annotations

import dataclasses
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from worldline.state.dtypes import ITEMSIZE_BYTES
from worldline.state.layout import Layout
from worldline.state.scalar import encode
from worldline.state.tree import materialize, pack, plan

INTEGER_OF_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
DTYPES = [getattr(torch, name) for name in ITEMSIZE_BYTES]


@dataclass
class Record:
    first: Any
    second: Any


@dataclass(frozen=True, slots=True)
class Slotted:
    only: Any


with warnings.catch_warnings():
    # torch says once per process that complex32 is experimental; only allocation says it.
    warnings.filterwarnings("ignore", message="ComplexHalf")
    torch.empty(0, dtype=torch.complex32)

CLASSES = (Record, Slotted)


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """A tensor of arbitrary bits, so NaN payloads, negative zeros and bools that are not 0 or 1."""
    count = torch.Size(shape).numel() * dtype.itemsize
    data = random.Random(seed).randbytes(count)
    raw = torch.frombuffer(bytearray(data), dtype=torch.uint8) if count else torch.empty(0)
    return (
        raw.to(torch.uint8).view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
    )


def bits(tensor: torch.Tensor) -> bytes:
    """The values' bits in row-major order."""
    if tensor.numel() == 0:
        return b""
    if tensor.element_size() == 16:
        tensor = torch.view_as_real(tensor)
    return tensor.view(INTEGER_OF_WIDTH[tensor.element_size()]).contiguous().numpy().tobytes()


def same(one: object, other: object) -> bool:
    """Equal in type, structure, dtype, shape and every bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and bits(one) == bits(other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if dataclasses.is_dataclass(one):
        names = [item.name for item in dataclasses.fields(one)]
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    return encode(one) == encode(other)


def tensors_in(tree: object) -> Iterator[torch.Tensor]:
    """Every tensor of a tree, in order."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for item in tree:
            yield from tensors_in(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(tree):
        for item in dataclasses.fields(tree):
            yield from tensors_in(getattr(tree, item.name))


floats = st.integers(0, 2**64 - 1).map(
    lambda raw: torch.tensor(raw - (raw >> 63 << 64)).view(torch.float64).item()
) | st.sampled_from([0.0, -0.0, float("nan"), float("inf"), 5e-324])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**600), 2**600),
    floats,
    st.builds(complex, floats, floats),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.binary(),
)
keys = st.one_of(
    st.sampled_from(["k", "v", "a b", "", 'quote"', "ключ", "0", "k]", "a.b"]),
    st.integers(-(2**63), 2**63 - 1),
)


def view_of(draw: st.DrawFn, base: torch.Tensor) -> torch.Tensor:
    """A view of a tensor through a few steps: slices, transposes, expansions, windows."""
    view = base
    for step in draw(st.lists(st.sampled_from("stewrb"), max_size=3)):
        if step == "s" and view.dim():
            dim = draw(st.integers(0, view.dim() - 1))
            start = draw(st.integers(0, view.shape[dim]))
            index = [slice(None)] * view.dim()
            index[dim] = slice(start, None, draw(st.integers(1, 3)))
            view = view[tuple(index)]
        elif step == "t" and view.dim() >= 2:
            view = view.transpose(0, draw(st.integers(1, view.dim() - 1)))
        elif step == "e" and view.dim() < 5:
            view = view.unsqueeze(0).expand(draw(st.integers(0, 3)), *view.shape)
        elif step == "w" and view.dim() and view.shape[-1] >= 2 and view.numel():
            view = view.unfold(-1, 2, 1)
        elif step == "r" and view.dim() and view.shape[0]:
            view = view[draw(st.integers(0, view.shape[0] - 1))]
        elif step == "b" and view.is_contiguous() and view.dim() and view.element_size() < 16:
            view = view.view(INTEGER_OF_WIDTH[view.element_size()])
    return view


@st.composite
def trees(draw: st.DrawFn) -> Any:
    """A tree up to four containers deep; some tensors are views of others'."""
    pool: list[torch.Tensor] = []

    def tensor() -> torch.Tensor:
        if not pool or draw(st.booleans()):
            dtype = draw(st.sampled_from(DTYPES))
            shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
            pool.append(random_tensor(dtype, shape, draw(st.integers(0, 2**32))))
        return view_of(draw, pool[draw(st.integers(0, len(pool) - 1))])

    def node(depth: int) -> Any:
        kind = draw(st.sampled_from("TTTS" if depth == 0 else "TTSSldtrf"))
        if kind == "T":
            return tensor()
        if kind == "S":
            return draw(scalars)
        if kind == "r":
            return Record(node(depth - 1), node(depth - 1))
        if kind == "f":
            return Slotted(node(depth - 1))
        if kind == "d":
            names = draw(st.lists(keys, max_size=3, unique=True))
            return {name: node(depth - 1) for name in names}
        items = [node(depth - 1) for _ in range(draw(st.integers(0, 3)))]
        return items if kind == "l" else tuple(items)

    return node(4)


def moved(tree: object, classes: tuple[type, ...] = CLASSES) -> tuple[Layout, torch.Tensor, Any]:
    """A tree through a slot that was not clean: its layout, the slot, the tree that came back."""
    layout = plan(tree)
    slot = torch.full((layout.extent_bytes,), 0xAA, dtype=torch.uint8)
    return pack(tree, layout, slot), slot, materialize(layout, slot, classes)
