"""Trees of Hugging Face caches that the receiving model has no place for are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.language import Decoding, qwen_config
from tests.unit.adapters.huggingface.caches import CONFIG, SIZES, WINDOW
from worldline.adapters.huggingface import cache_from, tree_of
from worldline.errors import InvalidInput


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_hidden_layers": 4}, "cache.layers"),
        ({"sliding_window": WINDOW + 1}, "cache.layers[2].sliding_window"),
        ({"max_window_layers": 3}, "cache.layers[2]"),
        ({"use_sliding_window": False}, "cache.layers[2]"),
    ],
)
def test_a_model_of_another_configuration_refuses(
    decode: Callable[..., Decoding], change: dict[str, Any], field: str
) -> None:
    tree = tree_of(decode("dynamic").cache)
    with pytest.raises(InvalidInput) as caught:
        cache_from(tree, qwen_config(**{**SIZES, **change}))
    assert (caught.value.field, caught.value.reason) == (field, "CACHE_MISMATCH")


def _without(key: str) -> Callable[[Any], None]:
    return lambda tree: tree.pop(key)


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (_without("class"), "cache.class"),
        (lambda tree: tree.update({"class": "QuantizedCache"}), "cache.class"),
        (lambda tree: tree.update(on_demand=1), "cache.on_demand"),
        (lambda tree: tree.update(extra=1), "cache.extra"),
        (lambda tree: tree.update(layers=tuple(tree["layers"])), "cache.layers"),
        (lambda tree: tree["layers"].__setitem__(1, None), "cache.layers[1]"),
        (lambda tree: tree["layers"][1].pop("class"), "cache.layers[1]"),
        (lambda tree: tree["layers"][1].update({"class": "QuantizedLayer"}), "cache.layers[1]"),
        (lambda tree: tree["layers"][1].pop("keys"), "cache.layers[1].keys"),
        (lambda tree: tree["layers"][1].update(keys=None), "cache.layers[1].keys"),
        (lambda tree: tree["layers"][1].update(more=0), "cache.layers[1].more"),
        (
            lambda tree: tree["layers"][1].pop("is_initialized"),
            "cache.layers[1].is_initialized",
        ),
        (
            lambda tree: tree["layers"][2].update(cumulative_length=1.0),
            "cache.layers[2].cumulative_length",
        ),
    ],
)
def test_a_tree_of_another_shape_is_refused(
    decode: Callable[..., Decoding], spoil: Callable[[Any], None], field: str
) -> None:
    tree = tree_of(decode("dynamic").cache)
    spoil(tree)
    with pytest.raises(InvalidInput) as caught:
        cache_from(tree, CONFIG)
    assert caught.value.field == field
