"""Harvest: a cache into a state tree. No byte is copied: the leaves are the cache's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from worldline.adapters.huggingface.checks import (
    check_cache_class,
    check_scalars,
    check_started,
    form_named,
    library_name,
)
from worldline.adapters.huggingface.forms import CACHE_FIELDS, STARTED, LayerForm
from worldline.adapters.refusal import check_names, check_type, unknown_shape


def tree_of(cache: object) -> dict[str, Any]:
    """A cache's state tree: everything of the cache that decides the next token.

    {"class": "DynamicCache", "on_demand": False, "layers": [{"class": "DynamicLayer",
    "is_initialized": True, "keys": tensor, "values": tensor}, ...]}, keys and values of shape
    [batch, heads, tokens, head dimension]. What is decoded with beside the cache (the last token,
    an attention mask, a sampler's generator) belongs into a tree around this one.

    Raises:
        InvalidInput: a class that is not known, an attribute more, less or of another kind than
            `forms` says, an offloading cache; the message names the class, `field` the attribute.
    """
    name = check_cache_class(library_name(cache, "cache"), "cache")
    fields = check_names(vars(cache), CACHE_FIELDS, "cache", name)
    if fields["offloading"] is not False:
        raise unknown_shape("cache.offloading", f"{name} keeps layers on another device")
    check_type(fields["layers"], list, "cache.layers", name)
    return {
        "class": name,
        "on_demand": _is_on_demand(name, fields["layer_class_to_replicate"]),
        "layers": [
            _layer(layer, f"cache.layers[{index}]") for index, layer in enumerate(fields["layers"])
        ],
    }


def _is_on_demand(name: str, layer_class: object) -> bool:
    """Whether the cache was made without a configuration and appends its layers as they come."""
    if layer_class is None:
        return False
    layer_name = getattr(layer_class, "__name__", None)
    if name != "DynamicCache" or layer_name != "DynamicLayer":
        raise unknown_shape("cache.layer_class_to_replicate", f"{name} replicates {layer_name}")
    return True


def _layer(layer: object, where: str) -> dict[str, Any]:
    form = form_named(library_name(layer, where), where)
    started = getattr(layer, STARTED, None)
    check_type(started, bool, f"{where}.{STARTED}", form.class_name)
    expected = form.attributes(started=started is True)
    fields = check_names(vars(layer), expected, where, form.class_name)
    check_scalars(fields, form, where)
    if started:
        check_started(fields, form, where)
        _check_derived(fields, form, where)
    else:
        _check_fresh(fields, form, where)
    held = {name: fields[name] for name in form.entries(started=started is True)}
    return {"class": form.class_name, **held}


def _check_derived(fields: Mapping[str, Any], form: LayerForm, where: str) -> None:
    for name, derivation in form.derived.items():
        expected = derivation(fields["keys"], fields["values"])
        if fields[name] != expected:
            raise unknown_shape(
                f"{where}.{name}",
                f"{form.class_name} says {fields[name]}, but holds {expected}",
            )


def _check_fresh(fields: Mapping[str, Any], form: LayerForm, where: str) -> None:
    """A layer that has not started holds nothing that its constructor would not make again."""
    for name in ("keys", "values"):
        if fields[name] is not None:
            raise unknown_shape(f"{where}.{name}", f"{form.class_name} has not started, but holds")
    for name, value in form.counters.items():
        check_type(fields[name], torch.Tensor, f"{where}.{name}", form.class_name)
        expected = fields[value] if isinstance(value, str) else value
        if fields[name].shape != () or fields[name].item() != expected:
            raise unknown_shape(f"{where}.{name}", f"{form.class_name} has not started, but counts")
