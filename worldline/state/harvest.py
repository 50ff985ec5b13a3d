"""Harvest: a tree of live objects taken apart into nodes and leaves, completely or not at all.

Containers are exactly list, tuple, dict and dataclass instances; scalars are exactly bool, int,
float, complex, str, bytes and None. Everything else is refused with its path, because a class
that this code does not know may hide state that would stay behind: NamedTuples, dict and list
subclasses, cache classes, enums, numpy values, dataclasses with attributes beside their fields or
derived from a builtin. A list, dict or unfrozen dataclass reached twice is refused too, and so is
a cycle: the two places would be one object before the move and two after it. (Tensors may be
reached twice: they share memory before and after.)

Tensors are exactly `torch.Tensor`, strided, with memory, of a dtype in `dtypes`, without gradient.
`nn.Parameter` and other subclasses are refused (what makes them special would be lost), and so are
tensors with a pending conjugate or negative bit (their memory is not their value; resolve first).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType

import torch

from worldline.errors import InvalidInput
from worldline.state import path as paths
from worldline.state.dtypes import ITEMSIZE_BYTES, itemsize_bytes
from worldline.state.leaf import ScalarLeaf, span_elements
from worldline.state.node import (
    DictNode,
    ListNode,
    Node,
    RecordNode,
    ScalarNode,
    TensorNode,
    TupleNode,
)
from worldline.state.record import class_name_of, field_values
from worldline.state.scalar import is_scalar
from worldline.state.stride import contiguous_stride
from worldline.state.validation import DEPTH_MAX

#: torch's dtype by its name in a layout; names that this torch lacks are left out.
TORCH_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {name: getattr(torch, name) for name in ITEMSIZE_BYTES if hasattr(torch, name)}
)
_NAMES: Mapping[torch.dtype, str] = MappingProxyType(
    {dtype: name for name, dtype in TORCH_DTYPES.items()}
)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that does not exist yet: stands in a tree that is planned before allocation."""

    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FoundTensor:
    """A tensor or spec, where it was found and how it lies in memory."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    #: In elements; a spec's are those of a fresh tensor.
    stride: tuple[int, ...]
    #: Of the first element; None where there is no memory (specs, empty tensors).
    address: int | None
    value: torch.Tensor | TensorSpec

    @property
    def span_bytes(self) -> int:
        """Bytes from the first to behind the last element."""
        return span_elements(self.shape, self.stride) * itemsize_bytes(self.dtype, leaf=self.path)

    @property
    def size_bytes(self) -> int:
        """Element count times element size."""
        return prod(self.shape) * itemsize_bytes(self.dtype, leaf=self.path)


@dataclass(slots=True)
class Harvest:
    """Everything that a tree holds, in order of the walk."""

    root: Node
    tensors: list[FoundTensor] = field(default_factory=list)
    scalars: list[ScalarLeaf] = field(default_factory=list)


def harvest(tree: object) -> Harvest:
    """Take a tree apart.

    Raises:
        InvalidInput: anything that cannot be moved; `leaf` is its path.
    """
    walk = _Walk()
    root = walk.visit(tree, "", 0)
    return Harvest(root, walk.tensors, walk.scalars)


class _Walk:
    """One walk over one tree, depth first, in insertion order."""

    def __init__(self) -> None:
        self.tensors: list[FoundTensor] = []
        self.scalars: list[ScalarLeaf] = []
        # The object is kept, so that its id stays its own for as long as the walk lasts.
        self._first_path: dict[int, tuple[str, object]] = {}

    def visit(self, value: object, path: str, depth: int) -> Node:
        if isinstance(value, torch.Tensor | TensorSpec):
            self.tensors.append(_found(value, paths.shown(path)))
            return TensorNode(len(self.tensors) - 1)
        if is_scalar(value):
            scalar = ScalarLeaf(paths.shown(path), value)  # type: ignore[arg-type]
            scalar.canonical()
            self.scalars.append(scalar)
            return ScalarNode(len(self.scalars) - 1)
        if depth >= DEPTH_MAX:
            raise refused(path, f"nested deeper than {DEPTH_MAX} (or a tuple that holds itself)")
        return self._container(value, path, depth + 1)

    def _container(self, value: object, path: str, depth: int) -> Node:
        self._refuse_second_visit(value, path)
        if type(value) is list or type(value) is tuple:
            items = tuple(
                self.visit(item, paths.of_item(path, index), depth)
                for index, item in enumerate(value)
            )
            return ListNode(items) if type(value) is list else TupleNode(items)
        if type(value) is dict:
            return DictNode(
                tuple(
                    (key, self.visit(item, paths.of_key(path, _key(key, path)), depth))
                    for key, item in value.items()
                )
            )
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return RecordNode(
                class_name_of(type(value)),
                tuple(
                    (name, self.visit(item, paths.of_field(path, name), depth))
                    for name, item in field_values(value, paths.shown(path))
                ),
            )
        raise refused(
            path,
            f"{type(value).__module__}.{type(value).__qualname__} is neither a container nor a "
            "leaf that can be moved; turn it into lists, dicts, dataclasses, tensors and scalars",
        )

    def _refuse_second_visit(self, value: object, path: str) -> None:
        if type(value) is tuple or _is_frozen(value):
            return  # one or two objects makes no difference; a cycle meets the depth bound
        first, _ = self._first_path.setdefault(id(value), (path, value))
        if first != path:
            raise refused(
                path,
                f"the same {type(value).__name__} as at {paths.shown(first)}: two places would "
                "stop being one object after a move",
            )


def _is_frozen(value: object) -> bool:
    params = getattr(type(value), "__dataclass_params__", None)
    return params is not None and bool(params.frozen)


def _key(key: object, path: str) -> str | int:
    if type(key) is str or type(key) is int:
        return key
    raise refused(path, f"dict key {key!r} is neither a plain str nor a plain int")


def _found(value: torch.Tensor | TensorSpec, path: str) -> FoundTensor:
    shape = tuple(value.shape)
    if isinstance(value, TensorSpec):
        if any(type(size) is not int or size < 0 for size in shape):
            raise refused(path, f"shape {shape} is not made of sizes")
        stride, address = contiguous_stride(shape), None
    else:
        reason = _why_not(value)
        if reason is not None:
            raise refused(path, reason)
        stride, address = value.stride(), value.data_ptr() if value.numel() else None
    name = _NAMES.get(value.dtype)
    if name is None:
        raise refused(path, f"dtype {value.dtype} cannot be moved")
    return FoundTensor(path, name, shape, stride, address, value)


def _why_not(tensor: torch.Tensor) -> str | None:
    """Why this tensor's memory is not all there is to it; None when it is."""
    if type(tensor) is not torch.Tensor:
        return f"{type(tensor).__name__} is a tensor subclass; hand over a plain torch.Tensor"
    if tensor.layout is not torch.strided or tensor.is_nested:
        return f"layout {tensor.layout} is not strided"
    if tensor.device.type == "meta":
        return "a meta tensor holds no bytes"
    if tensor.is_quantized:
        return f"{tensor.dtype} is quantized: its scale would stay behind"
    if tensor.is_conj() or tensor.is_neg():
        return "a lazy conjugate or negative view; call resolve_conj() or resolve_neg() first"
    if tensor.requires_grad:
        return "requires gradients, which a move would lose; detach() it"
    last = tensor.storage_offset() + span_elements(tuple(tensor.shape), tensor.stride())
    if tensor.numel() and tensor.untyped_storage().nbytes() < last * tensor.element_size():
        return "its storage was shrunk below the tensor"
    return None


def refused(path: str, message: str) -> InvalidInput:
    """The error for a leaf or container that cannot be moved."""
    return InvalidInput(f"{paths.shown(path)}: {message}", field="state", leaf=paths.shown(path))
