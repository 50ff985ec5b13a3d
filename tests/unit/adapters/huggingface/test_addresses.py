"""Static caches whose addresses somebody holds, as a CUDA graph does (fault 30)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers.cache_utils import StaticCache

from tests.language import Decoding, new_cache, qwen_config
from tests.unit.adapters.huggingface.caches import CONFIG, STATIC_TOKENS, WINDOW, moved
from worldline.adapters.huggingface import cache_from, copy_into, tree_of
from worldline.errors import InvalidInput
from worldline.state.tree import materialize, pack, plan


def _addresses(cache: Any) -> list[int]:
    return [
        value.data_ptr()
        for layer in cache.layers
        for value in vars(layer).values()
        if isinstance(value, torch.Tensor)
    ]


def test_a_static_cache_takes_a_state_without_moving(decode: Callable[..., Decoding]) -> None:
    """Fault 30: whoever holds the addresses goes on with the moved state."""
    source = decode("static", 3 * WINDOW)
    held = decode("static", 7)
    before = _addresses(held.cache)
    tree = moved(source.state(tree_of(source.cache)))
    copy_into(tree["cache"], held.cache)
    assert _addresses(held.cache) == before
    assert len(before) == 3 * 3
    assert set(_addresses(held.cache)).isdisjoint(
        entry["keys"].data_ptr() for entry in tree["cache"]["layers"]
    )
    there = Decoding(source.model, held.cache, tree["next_token"]).go_on(10)
    assert there.logits == source.go_on(10).logits
    assert _addresses(held.cache) == before


def test_a_static_cache_made_from_a_slot_goes_on_in_the_slot(
    decode: Callable[..., Decoding],
) -> None:
    source = decode("static")
    layout = plan(source.state(tree_of(source.cache)))
    slot = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    layout = pack(source.state(tree_of(source.cache)), layout, slot)
    tree: Any = materialize(layout, slot)
    cache = cache_from(tree["cache"], CONFIG)
    before = slot.clone()
    Decoding(source.model, cache, tree["next_token"]).go_on(2)
    assert not torch.equal(slot, before)
    assert all(
        slot.data_ptr() <= address < slot.data_ptr() + slot.numel() for address in _addresses(cache)
    )


@pytest.mark.parametrize(
    ("target", "field"),
    [
        (lambda: new_cache("dynamic", CONFIG), "cache"),
        (lambda: new_cache("static", CONFIG, STATIC_TOKENS), "cache.layers[0].is_initialized"),
        (lambda: new_cache("static", CONFIG, STATIC_TOKENS + 1), "cache.layers[0].max_cache_len"),
        (lambda: _early(CONFIG, torch.float32), "cache.layers[0].keys"),
        (lambda: _early(qwen_config(num_hidden_layers=3), torch.bfloat16), "cache.layers[2]"),
        (lambda: _early(qwen_config(num_hidden_layers=2), torch.bfloat16), "cache"),
    ],
)
def test_copying_into_a_cache_that_does_not_fit_changes_nothing(
    decode: Callable[..., Decoding], target: Callable[[], Any], field: str
) -> None:
    tree = tree_of(decode("static").cache)
    held = target()
    if field == "cache.layers[0].max_cache_len":
        held.early_initialization(1, 2, 64, torch.bfloat16, torch.device("cpu"))
    before = copy.deepcopy(held)
    with pytest.raises(InvalidInput) as caught:
        copy_into(tree, held)
    assert (caught.value.field, caught.value.reason) == (field, "CACHE_MISMATCH")
    assert _bytes(held) == _bytes(before)


def test_a_dynamic_cache_has_nothing_to_copy_into(decode: Callable[..., Decoding]) -> None:
    tree = tree_of(decode("dynamic").cache)
    with pytest.raises(InvalidInput, match="cache_from"):
        copy_into(tree, decode("dynamic", 9).cache)


def _early(config: Any, dtype: torch.dtype) -> Any:
    cache = StaticCache(config=config, max_cache_len=STATIC_TOKENS)
    cache.early_initialization(1, 2, 64, dtype, torch.device("cpu"))
    return cache


def _bytes(cache: Any) -> list[Any]:
    return [
        value.flatten().view(torch.uint8).tolist() if isinstance(value, torch.Tensor) else value
        for layer in cache.layers
        for value in vars(layer).values()
    ]
