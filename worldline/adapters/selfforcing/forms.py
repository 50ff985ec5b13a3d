"""Forms: what each cache of these pipelines consists of, down to the last key.

Names are those of the pipelines' attributes; the decoder's cache is a local variable there, which
its owner names `vae_cache`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class Kind(Enum):
    """What a cache is a list of."""

    #: A dict a block: keys and values [batch, tokens, heads, head dimension], and two indices.
    ROLLING = "rolling"
    #: A dict a block: projected once, and a flag that says so.
    CROSS = "cross"
    #: One entry a causal convolution: nothing yet, a mark, or its last frames.
    DECODER = "decoder"


TENSORS = ("k", "v")
INDICES = ("global_end_index", "local_end_index")
FLAG = "is_init"
#: Keys of a block's dict.
KEYS: Mapping[Kind, frozenset[str]] = MappingProxyType(
    {
        Kind.ROLLING: frozenset({*TENSORS, *INDICES}),
        Kind.CROSS: frozenset({*TENSORS, FLAG}),
    }
)
#: What the decoder writes where a convolution has seen one frame, and kept nothing of it.
MARK = "Rep"

_ROLLING = (
    "kv_cache",
    "kv_cache1",
    "kv_cache2",
    "kv_cache_pos",
    "kv_cache_neg",
    "kv_cache_mouse",
    "kv_cache_keyboard",
)
_CROSS = ("crossattn_cache", "crossattn_cache_pos", "crossattn_cache_neg")
_DECODER = ("vae_cache",)

#: The kind of each known cache.
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        **dict.fromkeys(_ROLLING, Kind.ROLLING),
        **dict.fromkeys(_CROSS, Kind.CROSS),
        **dict.fromkeys(_DECODER, Kind.DECODER),
    }
)
