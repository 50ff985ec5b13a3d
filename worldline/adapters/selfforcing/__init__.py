"""Self-Forcing: the caches of its pipeline and of those that descend from it, as state trees.

Self-Forcing, Matrix-Game-2, LongLive, Krea's realtime video and others keep one list a cache with
one dict a transformer block, and a list of tensors for the causal decoder. What they write in there
differs: indices are int64 tensors of one element or Python ints, flags are tensors or Python bools.
All of it travels as it is. Harvested completely or not at all: another cache, key or type is
`InvalidInput` with its path, before anything is moved.

Written against the public sources of those four as of 2026; nothing of them is needed here.
"""

from worldline.adapters.selfforcing.harvest import caches_of, tree_of
from worldline.adapters.selfforcing.install import caches_from, copy_into

__all__ = ["caches_from", "caches_of", "copy_into", "tree_of"]
