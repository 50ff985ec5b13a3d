"""Checks: what a cache must hold to be moved, live or as a tree. What does not is in `refusal`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from worldline.adapters.refusal import check_names, check_type, unknown_class, unknown_shape
from worldline.adapters.selfforcing.forms import (
    FLAG,
    INDICES,
    KEYS,
    KINDS,
    MARK,
    TENSORS,
    Kind,
)

_ONE = (1,)


def kind_of(name: object) -> Kind:
    """The kind of a cache by its name."""
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise unknown_class(str(name), f"no cache that can be moved; known: {', '.join(KINDS)}")
    return kind


def check_caches(caches: object) -> Mapping[str, Any]:
    """The caches, if every one of them is what its form says. No tensor's bytes are read."""
    if not isinstance(caches, Mapping):
        raise unknown_class("caches", f"{type(caches).__name__} is no mapping of names to caches")
    for name, cache in caches.items():
        check_cache(name, cache)
    return caches


def check_cache(name: str, cache: object) -> None:
    """A cache is a list of what its kind says, or None before it was made."""
    kind = kind_of(name)
    if cache is None:
        return
    if kind is Kind.DECODER:
        if not isinstance(cache, (list, tuple)) or type(cache) not in (list, tuple):
            raise unknown_shape(name, f"{type(cache).__name__}, not a list or tuple")
        _check_entries(name, cache)
        return
    check_type(cache, list, name, name)
    blocks: list[object] = cache  # type: ignore[assignment]
    for index, block in enumerate(blocks):
        _check_block(block, kind, f"{name}[{index}]", name)


def _check_entries(name: str, entries: Iterable[object]) -> None:
    for index, entry in enumerate(entries):
        is_mark = type(entry) is str and entry == MARK
        if entry is not None and not is_mark and type(entry) is not torch.Tensor:
            raise unknown_shape(
                f"{name}[{index}]",
                f"{type(entry).__name__}: neither a tensor nor None nor {MARK!r}",
            )


def _check_block(block: object, kind: Kind, where: str, owner: str) -> None:
    check_type(block, dict, where, owner)
    entries: dict[str, Any] = block  # type: ignore[assignment]
    check_names(entries, KEYS[kind], where, owner)
    for key in TENSORS:
        check_type(entries[key], torch.Tensor, f"{where}.{key}", owner)
    keys, values = (entries[key] for key in TENSORS)
    if keys.dim() != 4:
        raise unknown_shape(f"{where}.k", f"{owner} has {list(keys.shape)}, not four dimensions")
    if values.shape[:-1] != keys.shape[:-1] or values.dtype is not keys.dtype:
        raise unknown_shape(
            f"{where}.v",
            f"{values.dtype} {list(values.shape)} beside {keys.dtype} {list(keys.shape)}",
        )
    if kind is Kind.CROSS:
        _check_flag(entries[FLAG], f"{where}.{FLAG}", owner)
    else:
        _check_indices(entries, keys.shape[1], where, owner)


def _check_flag(flag: object, where: str, owner: str) -> None:
    """A Python bool, or a tensor of one."""
    if type(flag) is not bool and not _is_one(flag, torch.bool):
        raise unknown_shape(where, f"{owner} has {_shown(flag)}, not a bool or a tensor of one")


def _check_indices(entries: Mapping[str, Any], tokens: int, where: str, owner: str) -> None:
    """Both are ints or both int64 tensors of one element; ints say how much of the cache is in use.

    What a tensor says is left alone: on a GPU every look would wait for the device.
    """
    values = [entries[name] for name in INDICES]
    for name, value in zip(INDICES, values, strict=True):
        if type(value) is not int and not _is_one(value, torch.int64):
            raise unknown_shape(
                f"{where}.{name}", f"{owner} has {_shown(value)}, not an int or an int64 of one"
            )
    if type(values[0]) is not type(values[1]):
        raise unknown_shape(f"{where}.{INDICES[1]}", f"{owner} has one index of each kind")
    if type(values[0]) is int and not 0 <= values[1] <= min(tokens, values[0]):
        raise unknown_shape(
            f"{where}.{INDICES[1]}",
            f"{owner} says {values[1]} of {tokens} tokens, {values[0]} were ever written",
        )


def _is_one(value: object, dtype: torch.dtype) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and type(value) is torch.Tensor
        and value.dtype is dtype
        and tuple(value.shape) in (_ONE, ())
    )


def _shown(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.shape)}"
    return type(value).__name__
