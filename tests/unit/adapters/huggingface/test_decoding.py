"""Hugging Face caches: through a tree and back without a trace."""

from __future__ import annotations

import copy
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.language import Decoding, language_model, new_cache, prompt, qwen_config
from tests.unit.adapters.huggingface.caches import (
    CONFIG,
    KINDS,
    SIZES,
    STATIC_TOKENS,
    WINDOW,
    elsewhere,
    layer_of,
    moved,
)
from worldline.adapters.huggingface import cache_from, tree_of
from worldline.adapters.huggingface.forms import LAYER_FORMS
from worldline.errors import InvalidInput
from worldline.state.tree import plan

ROOT = Path(__file__).parents[4]
#: Before the window is full, at its edge, and after it has turned over.
PROMPTS = (5, WINDOW - 1, WINDOW, 3 * WINDOW)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", PROMPTS)
def test_decoding_goes_on_as_if_nothing_had_happened(
    decode: Callable[..., Decoding], kind: str, tokens: int
) -> None:
    source = decode(kind, tokens)
    target = elsewhere(source)
    source.go_on(12)
    target.go_on(6)
    target.tokens, target.logits, there = [], [], (target.tokens, target.logits)
    back = elsewhere(target).go_on(6)
    assert there[0] + back.tokens == source.tokens
    assert there[1] + back.logits == source.logits
    assert len(set(source.tokens)) > 6, "a model that repeats itself proves nothing"


def test_every_known_layer_class_was_among_them(decode: Callable[..., Decoding]) -> None:
    caches = [decode(kind).cache for kind in KINDS]
    assert {type(layer).__name__ for cache in caches for layer in cache.layers} == set(LAYER_FORMS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_tree_holds_the_caches_own_tensors(decode: Callable[..., Decoding], kind: str) -> None:
    cache = decode(kind).cache
    tree = tree_of(cache)
    for layer, entry in zip(cache.layers, tree["layers"], strict=True):
        assert entry["keys"] is layer.keys
        assert entry["values"] is layer.values


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_before_its_first_token(model: Any, kind: str) -> None:
    tree = moved(tree_of(new_cache(kind, CONFIG, STATIC_TOKENS)))
    ids = prompt(CONFIG, 20)
    moved_one = Decoding.begin(model, cache_from(tree, CONFIG), ids).go_on(4)
    fresh = Decoding.begin(model, new_cache(kind, CONFIG, STATIC_TOKENS), ids).go_on(4)
    assert moved_one.logits == fresh.logits


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [WINDOW // 2, 2 * WINDOW], ids=["filling", "full"])
def test_generate_goes_on_with_a_moved_cache(
    model: Any, decode: Callable[..., Decoding], kind: str, tokens: int
) -> None:
    source = decode(kind, tokens)
    ids = torch.cat([prompt(CONFIG, tokens), source.next_token], dim=1)
    caches = [copy.deepcopy(source.cache), elsewhere(source).cache]
    here, there = (_generated(model, ids, cache) for cache in caches)
    assert torch.equal(here, there)
    assert here.shape[1] == tokens + 1 + WINDOW
    # It generated from the cache it was given: another one leads elsewhere.
    spoilt = copy.deepcopy(source.cache)
    for layer in spoilt.layers:
        layer.values.mul_(-2.0)
    assert not torch.equal(here, _generated(model, ids, spoilt))


def _generated(model: Any, ids: torch.Tensor, cache: Any) -> torch.Tensor:
    found: torch.Tensor = model.generate(
        ids, past_key_values=cache, max_new_tokens=WINDOW, do_sample=False, pad_token_id=0
    )
    return found


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_model_that_sees_nothing_but_windows(kind: str) -> None:
    """Every layer slides: nothing of the beginning is left, and the lengths alone say where."""
    config = qwen_config(**{**SIZES, "max_window_layers": 0})
    model = language_model(config)
    source = Decoding.begin(
        model, new_cache(kind, config, STATIC_TOKENS), prompt(config, 2 * WINDOW + 3)
    )
    tree = moved(source.state(tree_of(source.cache)))
    assert {entry["class"].endswith("SlidingWindowLayer") for entry in tree["cache"]["layers"]} == {
        True
    }
    target = Decoding(model, cache_from(tree["cache"], config), tree["next_token"])
    assert target.go_on(WINDOW + 2).logits == source.go_on(WINDOW + 2).logits


def test_inference_mode_makes_no_difference(model: Any) -> None:
    ids = prompt(CONFIG, 20)
    with torch.inference_mode():
        cache = new_cache("dynamic", CONFIG)
        model(ids, past_key_values=cache, use_cache=True)
    tree = moved(tree_of(cache))
    assert all(
        torch.equal(entry["keys"], layer.keys)
        for entry, layer in zip(tree["layers"], cache.layers, strict=True)
    )


def test_a_window_of_a_long_cache_moves_only_the_window(decode: Callable[..., Decoding]) -> None:
    """A sliding layer's keys are a view of all the states of its last step."""
    cache, layer, index = layer_of("DynamicSlidingWindowLayer", decode)
    assert layer.keys.untyped_storage().nbytes() > layer.keys.nbytes
    leaves = {leaf.path: leaf for leaf in plan(tree_of(cache)).tensors}
    leaf = leaves[f"layers[{index}].keys"]
    assert leaf.span_bytes == leaf.size_bytes == layer.keys.nbytes


# What decides the next token is in the tree: whatever is changed in it shows in what follows.


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_no_leaf_or_scalar_can_be_lost(decode: Callable[..., Decoding], kind: str) -> None:
    source = decode(kind, WINDOW - 2)  # the window fills within the steps that are compared
    logits = copy.deepcopy(source).go_on(3).logits
    tree = source.state(tree_of(source.cache))
    changes = 0
    for index, entry in enumerate(tree["cache"]["layers"]):
        for name, value in entry.items():
            if name in ("class", "is_initialized", "record_past", "_sliding_window_tensor"):
                continue
            other = moved(tree)
            other["cache"]["layers"][index][name] = _perturbed(value)
            changes += 1
            assert _logits(source.model, other) != logits, f"layers[{index}].{name} changes nothing"
    assert changes == {"dynamic": 3 * 2 + 2, "static": 3 * 4 + 1}[kind]


def _perturbed(value: Any) -> Any:
    if isinstance(value, int):
        return value + 1
    changed = value.clone()
    if value.dim() == 0:
        return changed.add_(1)
    changed[..., 0, 0] = changed[..., 0, 0] * 2 + 1
    return changed


def _logits(model: Any, tree: Any) -> list[int] | str:
    """What follows from a tree; what it was refused for, where it was."""
    try:
        return (
            Decoding(model, cache_from(tree["cache"], CONFIG), tree["next_token"]).go_on(3).logits
        )
    except (InvalidInput, RuntimeError, IndexError) as error:
        return str(error)


def test_the_library_is_imported_only_to_make_a_cache() -> None:
    code = (
        "import sys, worldline.adapters.huggingface\n"
        "assert 'transformers' not in sys.modules, 'imported at once'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    kept = torch.random.get_rng_state()
    runpy.run_path(str(ROOT / "examples/huggingface_cache.py"))
    torch.random.set_rng_state(kept)
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "equal"
    assert len(set(said[1].split())) > 8, "a model that repeats itself proves nothing"
