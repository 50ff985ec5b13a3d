"""Install: a state tree into a cache, by pointer (`cache_from`) or by copy (`copy_into`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from worldline.adapters.huggingface.checks import (
    check_cache_class,
    check_scalars,
    check_started,
    form_named,
    library_name,
)
from worldline.adapters.huggingface.forms import STARTED, LayerForm
from worldline.adapters.huggingface.harvest import tree_of
from worldline.adapters.refusal import check_names, check_type, mismatch
from worldline.state.view import copy_bits

_TREE_ENTRIES = frozenset({"class", "on_demand", "layers"})


def cache_from(tree: dict[str, Any], config: Any) -> Any:
    """The cache of a state tree, made as the model's own `config` makes one.

    Its tensors are those of the tree, views into a slot for instance, and must live as long as
    the cache: a static cache goes on writing there, a dynamic one leaves with its next token.

    Raises:
        InvalidInput: the tree is not one of `tree_of`, or `config` makes other layers (`field`
            says which).
    """
    forms = _check_tree(tree)
    cache = _empty(tree, forms, config)
    if len(cache.layers) != len(forms):
        raise mismatch(
            "cache.layers", f"{len(forms)} layers; the configuration has {len(cache.layers)}"
        )
    for (where, entry, form), layer in zip(_layers(tree, forms), cache.layers, strict=True):
        _check_configured(entry, layer, form, where)
    for (_, entry, form), layer in zip(_layers(tree, forms), cache.layers, strict=True):
        _fill(entry, layer, form)
    return cache


def copy_into(tree: dict[str, Any], cache: Any) -> None:
    """Copy a state tree into a static cache that keeps its tensors: no address changes.

    For caches whose addresses somebody holds, a CUDA graph or a compiled function. The cache must
    have started (see `early_initialization` of transformers). Copies are queued on the current
    stream. Nothing is written unless everything fits.

    Raises:
        InvalidInput: the tree is not one of `tree_of`, or the cache is not of the same class,
            layers, dtypes and shapes (`field` says where), or it is a dynamic one.
    """
    forms = _check_tree(tree)
    mine = tree_of(cache)
    if tree["class"] != mine["class"] or len(forms) != len(mine["layers"]):
        raise mismatch("cache", f"{tree['class']} of {len(forms)} layers, into another cache")
    for (where, entry, form), own in zip(_layers(tree, forms), mine["layers"], strict=True):
        _check_fits(entry, own, form, where)
    for (_, entry, form), layer in zip(_layers(tree, forms), cache.layers, strict=True):
        for name in form.tensors:
            copy_bits(entry[name], getattr(layer, name))
        for name in form.scalars:
            setattr(layer, name, entry[name])


def _layers(
    tree: dict[str, Any], forms: list[LayerForm]
) -> Iterator[tuple[str, dict[str, Any], LayerForm]]:
    for index, (entry, form) in enumerate(zip(tree["layers"], forms, strict=True)):
        yield f"cache.layers[{index}]", entry, form


def _check_tree(tree: dict[str, Any]) -> list[LayerForm]:
    """The form of every layer, if the tree is one that `tree_of` makes."""
    check_type(tree, dict, "cache", "the tree")
    check_names(tree, _TREE_ENTRIES, "cache", "the tree")
    name = check_cache_class(tree["class"], "cache.class")
    check_type(tree["on_demand"], bool, "cache.on_demand", name)
    check_type(tree["layers"], list, "cache.layers", name)
    return [
        _check_entry(entry, f"cache.layers[{index}]") for index, entry in enumerate(tree["layers"])
    ]


def _check_entry(entry: Any, where: str) -> LayerForm:
    check_type(entry, dict, where, "the tree")
    form = form_named(entry.get("class"), where)
    started = entry.get(STARTED)
    check_type(started, bool, f"{where}.{STARTED}", form.class_name)
    expected = frozenset({"class", *form.entries(started=started)})
    check_names(entry, expected, where, form.class_name)
    check_scalars(entry, form, where)
    if started:
        check_started(entry, form, where)
    return form


def _empty(tree: dict[str, Any], forms: list[LayerForm], config: Any) -> Any:
    """A fresh cache of the tree's class; the library is imported only here."""
    from transformers.cache_utils import DynamicCache, DynamicLayer, StaticCache

    if tree["class"] == "StaticCache":
        length = max((entry.get("max_cache_len", 0) for entry in tree["layers"]), default=0)
        return StaticCache(config=config, max_cache_len=length)
    if not tree["on_demand"]:
        return DynamicCache(config=config)
    cache = DynamicCache()
    cache.layers = [DynamicLayer() for _ in forms]
    return cache


def _check_configured(entry: dict[str, Any], layer: Any, form: LayerForm, where: str) -> None:
    """The configuration makes this layer of the same class and with the same sizes."""
    name = library_name(layer, where)
    if name != form.class_name:
        raise mismatch(where, f"{form.class_name}; the configuration makes {name}")
    if form.configured is not None:
        here, there = getattr(layer, form.configured), entry[form.configured]
        if here != there:
            raise mismatch(f"{where}.{form.configured}", f"{there}; the configuration has {here}")


def _check_fits(entry: dict[str, Any], own: dict[str, Any], form: LayerForm, where: str) -> None:
    """The cache's own layer can take the entry in place."""
    if not form.is_static:
        raise mismatch(where, f"{form.class_name} has no fixed tensors; use cache_from")
    if own["class"] != form.class_name:
        raise mismatch(where, f"{form.class_name}, into {own['class']}")
    for name in (STARTED, form.configured or STARTED):
        if own[name] != entry[name]:
            raise mismatch(f"{where}.{name}", f"{entry[name]}, into {own[name]}")
    if not entry[STARTED]:
        raise mismatch(f"{where}.{STARTED}", f"{form.class_name} has no tensors yet")
    for name in form.tensors:
        given, held = entry[name], own[name]
        if (given.dtype, given.shape) != (held.dtype, held.shape):
            raise mismatch(
                f"{where}.{name}",
                f"{given.dtype} {list(given.shape)}, into {held.dtype} {list(held.shape)}",
            )


def _fill(entry: dict[str, Any], layer: Any, form: LayerForm) -> None:
    for name in form.entries(started=entry[STARTED]):
        setattr(layer, name, entry[name])
    if not entry[STARTED]:
        return
    for name, derivation in form.derived.items():
        setattr(layer, name, derivation(entry["keys"], entry["values"]))
    if form.is_static:
        # As the layer itself does when it starts: compiled functions may hold the addresses.
        from torch._dynamo import mark_static_address

        for name in form.tensors:
            mark_static_address(entry[name])
