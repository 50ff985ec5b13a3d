"""Harvest: caches into a state tree. No byte is copied: the leaves are the caches' tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from worldline.adapters.refusal import unknown_class
from worldline.adapters.selfforcing.checks import check_caches
from worldline.adapters.selfforcing.forms import KINDS

#: What makes an attribute of a pipeline a cache, whatever else is in its name.
_CACHE = "cache"


def caches_of(pipeline: object, besides: Iterable[str] = ()) -> dict[str, Any]:
    """The caches that a pipeline holds, by the names of its attributes, in `forms`' order.

    A decoder's cache is no attribute of it: add yours as `vae_cache`. An attribute that is a cache
    by its name and none that is known here is refused, since it would stay behind; `besides` are
    those that hold no state, a size for example.

    Raises:
        InvalidInput: there is none, or one that is not known (`field` is its name).
    """
    left_out = set(besides)
    held = {
        name: value
        for name, value in vars(pipeline).items()
        if _CACHE in name and name not in left_out
    }
    owner = type(pipeline).__name__
    for name in held:
        if name not in KINDS:
            raise unknown_class(
                name,
                f"{owner} keeps a cache that is not known here; if it decides nothing, name it in "
                "`besides`",
            )
    if not held:
        raise unknown_class("caches", f"{owner} keeps no cache that is known here")
    return {name: held[name] for name in KINDS if name in held}


def tree_of(caches: Mapping[str, Any]) -> dict[str, Any]:
    """The state tree of these caches, by their names: everything in them, nothing else.

    {"kv_cache1": [{"k": tensor, "v": tensor, "global_end_index": tensor, "local_end_index":
    tensor}, ...], "crossattn_cache": [{"k": tensor, "v": tensor, "is_init": True}, ...],
    "vae_cache": [tensor, None, "Rep", ...]}. Containers are new, tensors are the caches' own.

    Beside the caches, the next frame is decided by the frame to start at, the noise generator's
    state and the conditioning: put them into a tree around this one.

    Raises:
        InvalidInput: a cache that is not known, a key more or less, another type, sizes that
            contradict each other; `field` is the path.
    """
    return {name: regrown(cache) for name, cache in check_caches(caches).items()}


def regrown(value: Any) -> Any:
    """The same tree in containers of its own."""
    if isinstance(value, dict):
        return {key: regrown(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(regrown(child) for child in value)
    return value
