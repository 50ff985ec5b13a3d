"""Checks: what a cache must hold to be moved, live or as a tree. What does not is in `refusal`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from worldline.adapters.huggingface.forms import CACHE_CLASSES, LAYER_FORMS, LayerForm
from worldline.adapters.refusal import check_type, unknown_class, unknown_shape
from worldline.errors import InvalidInput

_HOME = "transformers.cache_utils"


def check_cache_class(name: object, where: str) -> str:
    """The name, if caches of that class can be moved."""
    if name not in CACHE_CLASSES:
        raise unknown_class(where, f"{name} cannot be moved; known: {', '.join(CACHE_CLASSES)}")
    return str(name)


def form_named(name: object, where: str) -> LayerForm:
    """The form of a layer class."""
    form = LAYER_FORMS.get(name) if isinstance(name, str) else None
    if form is None:
        known = ", ".join(LAYER_FORMS)
        raise unknown_class(where, f"layer class {name} cannot be moved; known: {known}")
    return form


def library_name(value: object, where: str) -> str:
    """The name of the value's class, which must be the library's own and no subclass of it."""
    cls = type(value)
    if cls.__module__ != _HOME or "." in cls.__qualname__:
        raise unknown_class(where, f"{cls.__module__}.{cls.__qualname__} is not of {_HOME}")
    return cls.__name__


def check_scalars(fields: Mapping[str, Any], form: LayerForm, where: str) -> None:
    """Each scalar has its type."""
    for name, kind in form.scalars.items():
        check_type(fields[name], kind, f"{where}.{name}", form.class_name)


def check_started(fields: Mapping[str, Any], form: LayerForm, where: str) -> None:
    """Keys and values are [batch, heads, tokens, head dimension], counters are single numbers."""
    for name in form.tensors:
        check_type(fields[name], torch.Tensor, f"{where}.{name}", form.class_name)
    for name in form.counters:
        if fields[name].shape != () or fields[name].dtype is not torch.int64:
            raise _sized(where, name, form, fields[name])
    keys, values = fields["keys"], fields["values"]
    if keys.numel() == values.numel() == 0 and not form.is_static:
        return  # made ahead of its first tokens: (0,) until they come
    if keys.dim() != 4 or (form.is_static and keys.shape[2] != fields["max_cache_len"]):
        raise _sized(where, "keys", form, keys)
    if values.shape[:-1] != keys.shape[:-1] or values.dtype is not keys.dtype:
        raise _sized(where, "values", form, values)


def _sized(where: str, name: str, form: LayerForm, tensor: torch.Tensor) -> InvalidInput:
    return unknown_shape(
        f"{where}.{name}", f"{form.class_name} has {tensor.dtype} {list(tensor.shape)} there"
    )
