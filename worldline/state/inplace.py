"""In place: recognises a materialized tree that is still the one it was, at a glance.

`pack` takes a whole tree apart to find out what it is. A world that stands still waits for that at
every move, and nearly always the answer is that only scalars have other values. This asks exactly
that, of the very objects that `materialize` made. Where the answer is anything else, `pack` says
what it is now.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import torch

from worldline.state.layout import Layout
from worldline.state.node import DictNode, ListNode, Node, ScalarNode, TensorNode, TupleNode
from worldline.state.scalar import ScalarValue, is_scalar

#: Address, shape, stride, dtype, gradients: what may change while a tensor stays the same object.
_Facts: TypeAlias = tuple[int, torch.Size, tuple[int, ...], torch.dtype, bool]


class InPlace:
    """A tree as `materialize` has just made it. Keeps its tensors: drop it with the tree."""

    def __init__(self, layout: Layout, tree: object) -> None:
        self._layout = layout
        self._tree = tree
        #: Of each container its keys, and of those what hangs there and is no scalar.
        self._containers: list[tuple[Any, tuple[Any, ...], list[tuple[Any, object]]]] = []
        self._tensors: list[tuple[torch.Tensor, _Facts]] = []
        self._scalars: list[tuple[Any, Any, str]] = []
        self._known = self._learn(layout.root, tree)

    def layout_of(self, tree: object) -> Layout | None:
        """The layout with the tree's scalars, if it is what it was but for them.

        Raises:
            InvalidInput: a scalar has no canonical form.
        """
        if not self._known or tree is not self._tree or not self._unchanged():
            return None
        values: dict[str, ScalarValue] = {}
        for container, key, path in self._scalars:
            value = container[key]
            if not is_scalar(value):
                return None
            values[path] = value
        return self._layout.with_scalars(values)

    def _unchanged(self) -> bool:
        for container, keys, hanging in self._containers:
            if len(container) != len(keys):
                return False
            if type(container) is dict and not _same(container, keys):
                return False
            if not all(container[key] is child for key, child in hanging):
                return False
        return all(_facts(tensor) == facts for tensor, facts in self._tensors)

    def _learn(self, node: Node, value: Any) -> bool:
        """Whether the tree below is of a kind that can be recognised: not one with dataclasses."""
        match node:
            case TensorNode():
                self._tensors.append((value, _facts(value)))
                return True
            case ListNode(items) | TupleNode(items):
                return self._learn_container(value, enumerate(items))
            case DictNode(entries):
                return self._learn_container(value, entries)
        return False

    def _learn_container(self, container: Any, entries: Iterable[tuple[Any, Node]]) -> bool:
        hanging: list[tuple[Any, object]] = []
        keys = []
        for key, child in entries:
            keys.append(key)
            if isinstance(child, ScalarNode):
                self._scalars.append((container, key, self._layout.scalars[child.index].path))
                continue
            hanging.append((key, container[key]))
            if not self._learn(child, container[key]):
                return False
        self._containers.append((container, tuple(keys), hanging))
        return True


def _same(container: dict[Any, Any], keys: tuple[Any, ...]) -> bool:
    """Whether these are its keys, in this order, themselves and not others that equal them."""
    return all(key is known for key, known in zip(container, keys, strict=True))


def _facts(tensor: torch.Tensor) -> _Facts:
    return (
        tensor.data_ptr(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.requires_grad,
    )
