"""Hugging Face caches that are not known to the last attribute are refused whole (fault 31)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicIndexedLayer,
    DynamicLayer,
    EncoderDecoderCache,
    LinearAttentionLayer,
    MtpCache,
    StaticLayer,
)

from tests.language import Decoding, new_cache, prompt
from tests.unit.adapters.huggingface.caches import CONFIG, STATIC_TOKENS, layer_of
from worldline.adapters.huggingface import tree_of
from worldline.adapters.huggingface.forms import LAYER_FORMS
from worldline.errors import InvalidInput
from worldline.state.tree import plan


@pytest.mark.parametrize("class_name", LAYER_FORMS)
def test_one_attribute_more_or_less_is_refused(
    decode: Callable[..., Decoding], class_name: str
) -> None:
    """Fault 31: another release's layer is a typed error, never a harvest of what is known."""
    cache, layer, index = layer_of(class_name, decode)
    names = sorted(vars(layer))
    assert len(names) >= 5
    for name in names:
        kept = vars(layer)[name]
        delattr(layer, name)
        _refused(cache, f"cache.layers[{index}].{name}", class_name)
        setattr(layer, name, object())
        _refused(cache, f"cache.layers[{index}].{name}", class_name)
        setattr(layer, name, kept)
    layer.residual = torch.zeros(3)
    _refused(cache, f"cache.layers[{index}].residual", class_name)
    del layer.residual
    tree_of(cache)


@pytest.mark.parametrize("name", ["layers", "layer_class_to_replicate", "offloading"])
def test_a_caches_own_attributes_are_held_to_account(
    decode: Callable[..., Decoding], name: str
) -> None:
    cache = decode("dynamic").cache
    kept = vars(cache)[name]
    setattr(cache, name, object())
    _refused(cache, f"cache.{name}", "DynamicCache")
    delattr(cache, name)
    _refused(cache, f"cache.{name}", "DynamicCache")
    setattr(cache, name, kept)
    cache.key_cache = []
    _refused(cache, "cache.key_cache", "DynamicCache")


def _refused(cache: Any, field: str, class_name: str, reason: str = "CACHE_SHAPE_UNKNOWN") -> None:
    with pytest.raises(InvalidInput) as caught:
        tree_of(cache)
    assert (caught.value.field, caught.value.reason) == (field, reason)
    assert class_name in caught.value.message


class DynamicCacheOfOurs(DynamicCache):
    """A subclass may hold anything."""


Impostor = type("DynamicCache", (), {"__module__": "somewhere"})
NestedLayer = type(
    "DynamicLayer",
    (DynamicLayer,),
    {"__module__": DynamicLayer.__module__, "__qualname__": "Outer.DynamicLayer"},
)


@pytest.mark.parametrize(
    ("made", "class_name"),
    [
        (lambda: DynamicCacheOfOurs(config=CONFIG), "DynamicCacheOfOurs"),
        (lambda: MtpCache(config=CONFIG), "MtpCache"),
        (lambda: Cache(layers=[DynamicLayer()]), "Cache"),
        (
            lambda: EncoderDecoderCache(DynamicCache(config=CONFIG), DynamicCache(config=CONFIG)),
            "EncoderDecoderCache",
        ),
        (Impostor, "somewhere.DynamicCache"),
        (lambda: ((torch.zeros(1), torch.zeros(1)),), "builtins.tuple"),
        (lambda: None, "builtins.NoneType"),
    ],
)
def test_an_unknown_cache_class_is_refused(made: Callable[[], Any], class_name: str) -> None:
    _refused(made(), "cache", class_name, "CACHE_CLASS_UNKNOWN")


@pytest.mark.parametrize(
    "made", [DynamicIndexedLayer, LinearAttentionLayer, lambda: StaticLayer, NestedLayer, object]
)
def test_an_unknown_layer_class_is_refused(
    decode: Callable[..., Decoding], made: Callable[[], Any]
) -> None:
    cache = decode("dynamic").cache
    layer = cache.layers[2] = made()
    _refused(cache, "cache.layers[2]", type(layer).__name__, "CACHE_CLASS_UNKNOWN")


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("static", "batch_size", 2),
        ("static", "num_heads", 14),
        ("static", "k_head_dim", 65),
        ("static", "max_cache_len", STATIC_TOKENS + 1),
        ("dynamic", "dtype", torch.float32),
        ("dynamic", "device", torch.device("meta")),
        ("dynamic", "values", torch.zeros(1, 2, 3, 64, dtype=torch.bfloat16)),
        ("dynamic", "keys", torch.zeros(2, 3, 64, dtype=torch.bfloat16)),
        ("static", "cumulative_length", torch.zeros(2, dtype=torch.int64)),
        ("static", "cumulative_length", torch.zeros((), dtype=torch.int32)),
        ("dynamic", "is_initialized", False),
    ],
)
def test_a_layer_that_contradicts_itself_is_refused(
    decode: Callable[..., Decoding], kind: str, name: str, value: Any
) -> None:
    cache = decode(kind).cache
    layer = cache.layers[0]
    setattr(layer, name, value)
    with pytest.raises(InvalidInput) as caught:
        tree_of(cache)
    assert caught.value.field is not None
    assert caught.value.field.startswith("cache.layers[0].")


def test_a_layer_that_says_it_has_not_started_but_counts(model: Any) -> None:
    cache = new_cache("static", CONFIG, STATIC_TOKENS)
    cache.layers[2].cumulative_length.add_(1)
    _refused(cache, "cache.layers[2].cumulative_length", "StaticSlidingWindowLayer")


def test_gradients_are_refused_when_the_tree_is_planned(model: Any) -> None:
    cache = new_cache("dynamic", CONFIG)
    model(prompt(CONFIG, 4), past_key_values=cache, use_cache=True)
    with pytest.raises(InvalidInput, match="gradients"):
        plan(tree_of(cache))
