"""A tree that is what it was, recognised; and everything that it may have become instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from worldline.errors import InvalidInput
from worldline.state.inplace import InPlace
from worldline.state.layout import Layout
from worldline.state.tree import materialize, pack, plan


def made() -> tuple[Layout, torch.Tensor, Any, InPlace]:
    """A tree in a slot, as an engine has it."""
    spec = {
        "kv": [{"k": torch.ones(2, 3), "at": 1}, {"k": torch.ones(3), "at": 2}],
        "pair": (torch.ones(4, dtype=torch.int32), 0.5),
        "names": ["a", None],
    }
    layout = plan(spec)
    buffer = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    pack(spec, layout, buffer)
    tree = materialize(layout, buffer)
    return layout, buffer, tree, InPlace(layout, tree)


def test_scalars_are_read_anew() -> None:
    layout, buffer, tree, known = made()
    assert known.layout_of(tree) == layout
    tree["kv"][1]["at"] = 7
    tree["names"][1] = b"now there"
    tree["kv"][0]["k"].fill_(9)
    after = known.layout_of(tree)
    assert after == pack(tree, layout, buffer)
    assert after is not None
    assert after.scalar_values()["kv[1].at"] == 7


def replace_data(kv: Any) -> None:
    kv[0]["k"].data = torch.zeros(2, 3)


#: What a model may do to the list `kv` of its tree that is not new values for scalars.
CHANGES: dict[str, Callable[[Any], object]] = {
    "tensor replaced": lambda kv: kv[0].update(k=kv[0]["k"].clone()),
    "tensor viewed": lambda kv: kv[0].update(k=kv[0]["k"].view(2, 3)),
    "data replaced": replace_data,
    "resized in place": lambda kv: kv[0]["k"].resize_(1, 3),
    "transposed in place": lambda kv: kv[0]["k"].t_(),
    "requires gradients": lambda kv: kv[0]["k"].requires_grad_(),
    "leaf added": lambda kv: kv[0].update(v=torch.ones(1)),
    "leaf removed": lambda kv: kv[1].pop("k"),
    "scalar removed": lambda kv: kv[1].pop("at"),
    "scalar became a tensor": lambda kv: kv[1].update(at=torch.ones(1)),
    "scalar of another type": lambda kv: kv[1].update(at=torch.int32),
    "order changed": lambda kv: kv[0].update(k=kv[0].pop("k")),
    "list grown": lambda kv: kv.append({"k": torch.ones(1), "at": 3}),
    "containers swapped": lambda kv: kv.reverse(),
    "container copied": lambda kv: kv.__setitem__(0, dict(kv[0])),
    "container shared": lambda kv: kv.__setitem__(1, kv[0]),
}


@pytest.mark.parametrize("what", CHANGES)
def test_anything_else_is_left_to_pack(what: str) -> None:
    _, _, tree, known = made()
    CHANGES[what](tree["kv"])
    assert known.layout_of(tree) is None


def test_another_tree_is_left_to_pack() -> None:
    layout, buffer, _, known = made()
    assert known.layout_of(materialize(layout, buffer)) is None


def test_a_scalar_without_a_canonical_form_is_refused() -> None:
    _, _, tree, known = made()
    tree["names"][0] = "\ud800"
    with pytest.raises(InvalidInput):
        known.layout_of(tree)


@dataclass
class Cache:
    """One of a model's own classes."""

    keys: torch.Tensor
    length: int


def test_a_tree_of_dataclasses_is_left_to_pack() -> None:
    tree = {"cache": Cache(torch.ones(2), 1)}
    layout = plan(tree)
    buffer = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    pack(tree, layout, buffer)
    live = materialize(layout, buffer, (Cache,))
    assert InPlace(layout, live).layout_of(live) is None
