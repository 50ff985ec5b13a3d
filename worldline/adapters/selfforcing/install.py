"""Install: a state tree into caches, by pointer (`caches_from`) or by copy (`copy_into`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from worldline.adapters.refusal import mismatch
from worldline.adapters.selfforcing.checks import check_caches
from worldline.adapters.selfforcing.forms import KINDS, Kind
from worldline.adapters.selfforcing.harvest import regrown
from worldline.state.view import copy_bits


class _Pair(NamedTuple):
    """One leaf of the tree, and the place in the receiver's caches that it goes to."""

    where: str
    given: Any
    container: Any
    key: Any
    kind: Kind

    @property
    def held(self) -> Any:
        return self.container[self.key]


def caches_from(tree: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """The caches of a state tree; `like` are the receiver's own, as its pipeline makes them fresh.

    Tensors are those of the tree, views into a slot for instance, and must live as long as the
    caches. Rolling caches go on writing there. A pipeline that projects its cross-attention anew,
    and the decoder, put tensors of their own in their places: pack again before the next move.

    Raises:
        InvalidInput: the tree is not one of `tree_of`, or the receiver makes other caches, blocks,
            shapes or dtypes (`field` says where). A cache that the receiver has not made yet
            (None) takes any.
    """
    check_caches(tree)
    for pair in _pairs(tree, check_caches(like)):
        _check_alike(pair)
    return {name: regrown(cache) for name, cache in tree.items()}


def copy_into(tree: Mapping[str, Any], caches: Mapping[str, Any]) -> None:
    """Copy a state tree into caches that keep their tensors: no address changes.

    For whoever holds the addresses, a CUDA graph or a compiled function. Copies are queued on the
    current stream. Nothing is written unless everything fits.

    Raises:
        InvalidInput: as `caches_from`; or a tensor where the other side has none yet.
    """
    check_caches(tree)
    pairs = list(_pairs(tree, check_caches(caches)))
    for pair in pairs:
        _check_alike(pair)
        _check_copied(pair)
    for pair in pairs:
        if isinstance(pair.given, torch.Tensor):
            copy_bits(pair.given, pair.held)
        elif pair.held is not pair.given:
            pair.container[pair.key] = pair.given


def _pairs(tree: Mapping[str, Any], caches: Mapping[str, Any]) -> Iterator[_Pair]:
    """Every leaf of both, side by side, a cache that one side has not made as one leaf."""
    if tree.keys() != caches.keys():
        other = sorted(tree.keys() ^ caches.keys())[0]
        side = "the receiver keeps none" if other in tree else "the state has none"
        raise mismatch(other, side)
    for name, given in tree.items():
        held, kind = caches[name], KINDS[name]
        if given is None or held is None:
            yield _Pair(name, given, caches, name, kind)
            continue
        if len(given) != len(held):
            raise mismatch(name, f"{len(given)} entries, into {len(held)}")
        for index, entry in enumerate(given):
            where = f"{name}[{index}]"
            if kind is Kind.DECODER:
                yield _Pair(where, entry, held, index, kind)
                continue
            for key, value in entry.items():
                yield _Pair(f"{where}.{key}", value, held[index], key, kind)


def _check_alike(pair: _Pair) -> None:
    """Two leaves are of one kind; two tensors of one dtype and shape."""
    given, held = pair.given, pair.held
    if pair.kind is Kind.DECODER and not (_is_tensor(given) and _is_tensor(held)):
        return  # what a convolution keeps begins with nothing
    if given is None or held is None:
        return
    if _is_tensor(given) != _is_tensor(held):
        raise mismatch(pair.where, f"{type(given).__name__}, into {type(held).__name__}")
    if _is_tensor(given) and (given.dtype, given.shape) != (held.dtype, held.shape):
        raise mismatch(
            pair.where,
            f"{given.dtype} {list(given.shape)}, into {held.dtype} {list(held.shape)}",
        )


def _check_copied(pair: _Pair) -> None:
    """There is a place for the bits, and it is not the tree's own."""
    given, held = pair.given, pair.held
    if isinstance(given, (list, tuple)) or isinstance(held, (list, tuple)):
        raise mismatch(pair.where, "made on one side only; use caches_from")
    if _is_tensor(given) != _is_tensor(held):
        raise mismatch(
            pair.where,
            f"{_shown(given)}, into {_shown(held)}: there is no tensor to copy into; use "
            "caches_from",
        )
    if not _is_tensor(given) and isinstance(pair.container, tuple) and given != held:
        raise mismatch(pair.where, f"{given!r}, into {held!r} of a tuple; use caches_from")


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _shown(value: object) -> str:
    return "a tensor" if _is_tensor(value) else repr(value)
