"""Hugging Face: a `transformers` cache as a state tree, and the tree as a cache again.

Harvested completely or not at all: of each cache and layer class that is known here, `forms` says
what an instance consists of. Another class, one attribute more or one less (another release of the
library) is `InvalidInput` with the class and the field, before anything is read.

Written against transformers 5.17.
"""

from worldline.adapters.huggingface.harvest import tree_of
from worldline.adapters.huggingface.install import cache_from, copy_into

__all__ = ["cache_from", "copy_into", "tree_of"]
