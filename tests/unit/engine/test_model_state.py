"""The state tree: the original model's shape, exactly, and nothing that decides left out."""

from __future__ import annotations

import math

import pytest
import torch

from services.engine.model.config import MG2, PRESETS, SMALL, TINY, preset
from services.engine.model.dirty import DirtyWorld
from services.engine.model.factory import build_world
from services.engine.model.state import cache_size, session_size, state_spec
from services.engine.world import NO_FRAMES
from tests.unit.engine.support import PrivateState, run_block, script
from worldline.errors import InvalidInput
from worldline.state.tree import plan


def test_mg2_cache_is_the_papers_state_to_the_byte() -> None:
    size = cache_size(MG2)
    assert (size.size_bytes, size.tensors, size.leaves) == (1_670_124_960, 420, 450)


def test_mg2_leaves_have_the_original_shapes() -> None:
    shapes = {leaf.path: (leaf.dtype, leaf.shape) for leaf in plan(state_spec(MG2)).tensors}
    for index in (0, 29):
        assert shapes[f"kv_cache[{index}].k"] == ("bfloat16", (1, 5280, 12, 128))
        assert shapes[f"kv_cache_mouse[{index}].v"] == ("bfloat16", (880, 6, 16, 64))
        assert shapes[f"kv_cache_keyboard[{index}].k"] == ("bfloat16", (1, 6, 16, 64))
        assert shapes[f"crossattn_cache[{index}].v"] == ("bfloat16", (1, 257, 12, 128))
        assert shapes[f"kv_cache_mouse[{index}].global_end_index"] == ("int64", (1,))
    scalars = {scalar.path: scalar.value for scalar in plan(state_spec(MG2)).scalars}
    assert scalars["crossattn_cache[29].is_init"] is False


@pytest.mark.parametrize("config", PRESETS.values(), ids=lambda config: config.name)
def test_reported_sizes_are_those_of_the_plan(config) -> None:
    layout = plan(state_spec(config))
    planned = sum(leaf.size_bytes for leaf in layout.tensors)
    assert cache_size(config).size_bytes + session_size(config).size_bytes == planned
    assert cache_size(config).tensors + session_size(config).tensors == len(layout.tensors)
    assert cache_size(config).scalars + session_size(config).scalars == len(layout.scalars)


def test_small_presets_are_small() -> None:
    assert 1 << 20 < cache_size(TINY).size_bytes < 4 << 20
    assert 10 << 20 < cache_size(SMALL).size_bytes < 100 << 20


def test_unknown_preset_is_named_with_those_that_exist() -> None:
    with pytest.raises(InvalidInput, match="tiny, small, mg2") as refused:
        preset("huge")
    assert refused.value.field == "world.preset"


def test_mg2_on_a_cpu_is_state_only() -> None:
    assert isinstance(build_world("mg2", 0, torch.device("cpu")), DirtyWorld)
    assert not isinstance(build_world("tiny", 0, torch.device("cpu")), DirtyWorld)


def snapshot(cache: dict, name: str) -> torch.Tensor:
    return cache[name].view(torch.int16).clone()


@pytest.mark.parametrize("computed", [True, False], ids=["causal", "dirty"])
def test_window_fills_then_keeps_one_half_and_rewrites_the_other(computed: bool) -> None:
    model = build_world("tiny", 0, torch.device("cpu")) if computed else DirtyWorld(TINY)
    session = PrivateState(model)
    caches = {
        "kv_cache": (TINY.tokens_per_frame, TINY.layers),
        "kv_cache_mouse": (1, TINY.action_layers),
        "kv_cache_keyboard": (1, TINY.action_layers),
    }
    for block in range(5):
        before = {name: [snapshot(cache, "k") for cache in session.tree[name]] for name in caches}
        session.block(script(block))
        for name, (per_frame, wired) in caches.items():
            half = 3 * per_frame
            for index in range(TINY.layers):
                cache, old = session.tree[name][index], before[name][index]
                new = snapshot(cache, "k")
                if index >= wired:
                    assert torch.equal(new, old)
                    assert int(cache["global_end_index"]) == 0
                    continue
                assert int(cache["global_end_index"]) == (block + 1) * half
                assert int(cache["local_end_index"]) == min(block + 1, 2) * half
                if block == 0:
                    assert not torch.equal(new[:, :half], old[:, :half])
                    assert torch.equal(new[:, half:], old[:, half:])
                else:
                    kept = old[:, half:] if block >= 2 else old[:, :half]
                    assert torch.equal(new[:, :half], kept)
                    # In every frame, not just somewhere in the half.
                    for frame in new[:, half:].split(per_frame, dim=1):
                        assert frame.any()
                    assert not torch.equal(new[:, half:], old[:, half:])
        assert all(cache["is_init"] is True for cache in session.tree["crossattn_cache"])


def test_dirty_rewrites_about_half_of_the_wired_bytes() -> None:
    session = PrivateState(DirtyWorld(TINY))
    for block in range(3):
        session.block(script(block))
    before = session.buffer.clone()
    assert session.block(script(3)) is NO_FRAMES
    leaf = session.tree["kv_cache"][0]["k"]
    changed = int((before != session.buffer).sum())
    wired = sum(
        2 * math.prod(cache["k"].shape) * 2
        for name, count in (("kv_cache", TINY.layers), ("kv_cache_mouse", TINY.action_layers))
        for cache in session.tree[name][:count]
    )
    assert leaf.dtype is torch.bfloat16
    # Random over random: 255 of 256 bytes change, in the shifted half too.
    assert 0.98 * wired < changed < 1.02 * wired


def test_cross_attention_cache_is_written_once() -> None:
    session = PrivateState(DirtyWorld(TINY))
    session.block(script(0))
    first = [snapshot(cache, "k") for cache in session.tree["crossattn_cache"]]
    session.block(script(1))
    again = [snapshot(cache, "k") for cache in session.tree["crossattn_cache"]]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert first[0].any()


def test_an_action_for_another_block_is_refused() -> None:
    for model in (DirtyWorld(TINY), build_world("tiny", 0, torch.device("cpu"))):
        session = PrivateState(model)
        with pytest.raises(InvalidInput) as refused:
            run_block(model, session.tree, script(1))
        assert refused.value.field == "action.block_index"
