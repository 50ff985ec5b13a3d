"""Hugging Face caches: into a tree and back without a trace, or refused whole."""

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
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicIndexedLayer,
    DynamicLayer,
    EncoderDecoderCache,
    LinearAttentionLayer,
    MtpCache,
    StaticCache,
    StaticLayer,
)

from tests.language import Decoding, language_model, new_cache, prompt, qwen_config
from worldline.adapters.huggingface import cache_from, copy_into, tree_of
from worldline.adapters.huggingface.forms import LAYER_FORMS
from worldline.errors import InvalidInput
from worldline.state.codec import layout_from_proto, layout_to_proto
from worldline.state.tree import materialize, pack, plan

ROOT = Path(__file__).parents[3]
WINDOW = 16
STATIC_TOKENS = 64
#: Two layers see everything and one a window: every layer class in two caches.
SIZES: dict[str, Any] = {
    "num_hidden_layers": 3,
    "use_sliding_window": True,
    "sliding_window": WINDOW,
    "max_window_layers": 2,
}
CONFIG = qwen_config(**SIZES)
KINDS = ("dynamic", "on demand", "static")
#: Before the window is full, at its edge, and after it has turned over.
PROMPTS = (5, WINDOW - 1, WINDOW, 3 * WINDOW)


@pytest.fixture(scope="module")
def model() -> Any:
    return language_model(CONFIG)


@pytest.fixture
def decode(model: Any) -> Callable[..., Decoding]:
    def decode(kind: str, tokens: int = 2 * WINDOW) -> Decoding:
        cache = new_cache(kind, CONFIG, STATIC_TOKENS)
        return Decoding.begin(model, cache, prompt(CONFIG, tokens))

    return decode


def moved(tree: dict[str, Any]) -> Any:
    """The tree as another process gets it: bytes of a slot, and a layout off the wire."""
    layout = plan(tree)
    slot = torch.full((layout.extent_bytes,), 0xA5, dtype=torch.uint8)
    layout = pack(tree, layout, slot)
    return materialize(layout_from_proto(layout_to_proto(layout)), slot.clone())


def elsewhere(decoding: Decoding) -> Decoding:
    tree = moved(decoding.state(tree_of(decoding.cache)))
    return Decoding(decoding.model, cache_from(tree["cache"], CONFIG), tree["next_token"])


def layer_of(class_name: str, decode: Callable[..., Decoding]) -> tuple[Any, Any, int]:
    """A started cache that has a layer of the class, the layer and its index."""
    cache = decode("dynamic" if class_name.startswith("Dynamic") else "static").cache
    index = next(i for i, layer in enumerate(cache.layers) if type(layer).__name__ == class_name)
    return cache, cache.layers[index], index


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


# Refused whole: fault 31.


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


# The receiving side.


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


# Fixed addresses: fault 30.


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
