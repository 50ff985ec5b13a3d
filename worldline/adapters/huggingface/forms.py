"""Forms: what an instance of each known layer class consists of, down to the last attribute.

After `transformers/cache_utils.py` of release 5.17. A layer holds tensors (moved as leaves),
scalars (moved in the manifest) and, once it has started, attributes that follow from its keys and
values (checked, and computed again at the other end).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

import torch

#: What an attribute must be, given the layer's keys and values.
Derivation: TypeAlias = Callable[[torch.Tensor, torch.Tensor], object]

#: Attributes of a cache itself: nothing of it is state but the layers.
CACHE_FIELDS = frozenset({"layers", "layer_class_to_replicate", "offloading"})
CACHE_CLASSES = ("DynamicCache", "StaticCache")
#: Says whether a layer has keys and values; part of every form.
STARTED = "is_initialized"

_PLACE: Mapping[str, Derivation] = {
    "dtype": lambda keys, values: keys.dtype,
    "device": lambda keys, values: keys.device,
}
_SIZES: Mapping[str, Derivation] = {
    "batch_size": lambda keys, values: keys.shape[0],
    "num_heads": lambda keys, values: keys.shape[1],
    "k_head_dim": lambda keys, values: keys.shape[-1],
    "v_head_dim": lambda keys, values: values.shape[-1],
}


@dataclass(frozen=True)
class LayerForm:
    """One layer class: the names of everything that its instances hold."""

    class_name: str
    #: Tensors beside `keys` and `values`, and the value of each before the layer starts: a number,
    #: or the name of the scalar that has it.
    counters: Mapping[str, int | str] = field(default_factory=dict)
    #: Scalars and their exact types.
    scalars: Mapping[str, type] = field(default_factory=dict)
    #: The scalar that the receiver's own configuration must give too.
    configured: str | None = None
    #: Attributes that exist once the layer has started, and what they must be.
    derived: Mapping[str, Derivation] = field(default_factory=dict)
    #: Whether its tensors have a fixed size, are written in place and keep their addresses.
    is_static: bool = False

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of all tensors, in the order of the tree."""
        return ("keys", "values", *self.counters)

    def attributes(self, *, started: bool) -> frozenset[str]:
        """Names of everything that an instance holds."""
        names = frozenset({STARTED, *self.tensors, *self.scalars})
        return names | self.derived.keys() if started else names

    def entries(self, *, started: bool) -> tuple[str, ...]:
        """Attributes that are in the state tree, in order."""
        return (STARTED, *self.scalars, *(self.tensors if started else ()))


_FORMS = (
    LayerForm("DynamicLayer", derived=_PLACE),
    LayerForm(
        "DynamicSlidingWindowLayer",
        counters={"_sliding_window_tensor": "sliding_window"},
        scalars={"sliding_window": int, "cumulative_length": int, "record_past": bool},
        configured="sliding_window",
        derived=_PLACE,
    ),
    LayerForm(
        "StaticLayer",
        counters={"cumulative_length": 0},
        scalars={"max_cache_len": int},
        configured="max_cache_len",
        derived={**_PLACE, **_SIZES},
        is_static=True,
    ),
    LayerForm(
        "StaticSlidingWindowLayer",
        counters={"cumulative_length": 0},
        scalars={"max_cache_len": int, "cumulative_length_int": int},
        configured="max_cache_len",
        derived={**_PLACE, **_SIZES},
        is_static=True,
    ),
)
#: Forms by the name of their class.
LAYER_FORMS: Mapping[str, LayerForm] = MappingProxyType({form.class_name: form for form in _FORMS})
