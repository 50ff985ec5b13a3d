"""Faults that users of neighbouring systems met, as far as the state's description is concerned."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from tests.unit.state.strategies import trees
from worldline.errors import InvalidInput
from worldline.state.digest import digest_slot
from worldline.state.harvest import harvest
from worldline.state.tree import plan


def world() -> dict[str, Any]:
    """A small world with everything that decides its next frame."""
    return {
        "kv_cache": [{"k": torch.zeros(4), "v": torch.zeros(4), "end": 3} for _ in range(2)],
        "decoder": {"cache": torch.zeros(2, 2), "warm": True},
        "generator": torch.Generator().get_state(),
        "step": 0,
    }


def without(tree: Any, path: tuple[Any, ...]) -> Any:
    """The tree less the leaf at a path."""
    if isinstance(tree, dict):
        items = {key: value for key, value in tree.items() if (key,) != path}
        return {k: without(v, path[1:]) if path[:1] == (k,) else v for k, v in items.items()}
    return [without(v, path[1:]) if path[:1] == (i,) else v for i, v in enumerate(tree)]


def leaf_paths(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(tree, dict):
        return [path for key, value in tree.items() for path in leaf_paths(value, (*at, key))]
    if isinstance(tree, list):
        return [path for key, value in enumerate(tree) for path in leaf_paths(value, (*at, key))]
    return [at]


def test_dropping_any_one_leaf_is_caught() -> None:
    """Noise generator, step index and decoder cache are leaves like any other."""
    paths = leaf_paths(world())
    assert len(paths) == 10
    whole = plan(world()).topology_hash
    hashes = {plan(without(world(), path)).topology_hash for path in paths}
    assert len(hashes) == len(paths)
    assert whole not in hashes


def test_reordering_leaves_is_caught() -> None:
    tree = world()
    tree["kv_cache"].reverse()
    assert plan(tree).topology_hash == plan(world()).topology_hash  # equal leaves, equal places
    other = dict(reversed(list(world().items())))
    assert plan(other).topology_hash != plan(world()).topology_hash


def test_a_generator_object_is_not_silently_left_behind() -> None:
    with pytest.raises(InvalidInput) as caught:
        plan({"generator": torch.Generator(), "x": torch.zeros(1)})
    assert caught.value.leaf == "generator"


@given(trees())
@settings(max_examples=100, deadline=None)
def test_a_harvest_is_never_partial(tree: object) -> None:
    """One foreign object anywhere, and nothing is laid out."""
    plan([tree])
    with pytest.raises(InvalidInput) as caught:
        plan([tree, {"foreign": object()}])
    assert caught.value.leaf == "[1].foreign"


@given(trees())
@settings(max_examples=100, deadline=None)
def test_leaves_are_neither_folded_nor_lost(tree: object) -> None:
    found = harvest(tree)
    layout = plan(tree)
    assert len(layout.tensors) == len(found.tensors)
    assert len(layout.scalars) == len(found.scalars)
    digests = digest_slot(layout, memoryview(bytes(layout.extent_bytes)))
    assert len(digests.leaves) == len(layout.tensors)


def test_services_that_only_route_manifests_start_without_torch() -> None:
    code = (
        "import sys, worldline.state.codec, worldline.state.digest, worldline.state.layout;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
