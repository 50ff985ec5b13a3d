"""Flips: which single bits the batteries change, chosen by strata from a seed.

A battery that flips random bytes of a state flips its largest leaves and nothing else. Here every
kind of leaf (long, short, of one element, of each dtype) gets its share of sign, exponent,
mantissa and plain bits, at its first, its last and an inner element; and the extent itself gets
its edges: both ends, both sides of granule borders, the short last granule, padding between leaves.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bench.significance import SIGNIFICANCE
from services.engine.model.config import SMALL
from services.engine.model.state import state_spec
from worldline.state.digest import GRANULE_BYTES
from worldline.state.dtypes import itemsize_bytes
from worldline.state.layout import Layout
from worldline.state.leaf import TensorLeaf
from worldline.state.tree import plan

PLACES = ("first", "inner", "last")


@dataclass(frozen=True, slots=True)
class Flip:
    """One bit of a slot, and what has to be said of it once it is found."""

    stratum: str
    offset_bytes: int
    #: Within the byte.
    bit: int
    #: None for padding.
    leaf: str | None

    @property
    def granule(self) -> int:
        return self.offset_bytes // GRANULE_BYTES

    @property
    def found(self) -> tuple[str | None, int]:
        """What an error or a report must name."""
        return self.leaf, self.granule

    def apply(self, view: memoryview, start_bytes: int = 0) -> bool:
        """Change the bit in a view of the slot from `start_bytes` on; whether it lies in there."""
        at = self.offset_bytes - start_bytes
        if not 0 <= at < view.nbytes:
            return False
        view[at] ^= 1 << self.bit
        return True


def world_layout() -> Layout:
    """The full-size world's tree with fewer and smaller leaves: 10 MiB, leaves over two granules.

    Caches in bfloat16, ends of windows of 8 bytes, a decoder in float32, a generator in bytes.
    """
    return plan(state_spec(replace(SMALL, layers=3, action_layers=2, heads=9)))


def flips(layout: Layout, seed: int) -> list[Flip]:
    """One bit of every stratum, another one for another seed."""
    dice = random.Random(seed)
    return [*_of_leaves(layout, dice), *_of_the_extent(layout, dice)]


def _of_leaves(layout: Layout, dice: random.Random) -> Iterator[Flip]:
    classes: dict[str, list[TensorLeaf]] = {}
    for leaf in layout.tensors:
        classes.setdefault(f"{leaf.dtype}, {_length(leaf)}", []).append(leaf)
    for name, leaves in sorted(classes.items()):
        for meaning, bits in SIGNIFICANCE[leaves[0].dtype].items():
            for place in PLACES if leaves[0].shape != (1,) else PLACES[:1]:
                leaf = dice.choice(leaves)
                item_bytes = itemsize_bytes(leaf.dtype, leaf=leaf.path)
                last = leaf.size_bytes // item_bytes - 1
                index = {"first": 0, "last": last}.get(place, dice.randint(0, last))
                byte, bit = divmod(dice.choice(bits), 8)
                offset_bytes = leaf.offset_bytes + index * item_bytes + byte
                yield Flip(f"{name}, {place}, {meaning}", offset_bytes, bit, leaf.path)


def _length(leaf: TensorLeaf) -> str:
    if leaf.shape == (1,):
        return "one element"
    return "over a granule" if leaf.size_bytes > GRANULE_BYTES else "within a granule"


def _of_the_extent(layout: Layout, dice: random.Random) -> Iterator[Flip]:
    granules = -(-layout.extent_bytes // GRANULE_BYTES)
    border_bytes = GRANULE_BYTES * dice.randrange(1, granules)
    short_bytes = GRANULE_BYTES * (granules - 1)
    places = {
        "first byte": 0,
        "last byte": layout.extent_bytes - 1,
        "end of a granule": border_bytes - 1,
        "start of a granule": border_bytes,
        "short last granule": dice.randrange(short_bytes, layout.extent_bytes),
    }
    padding = [
        at
        for one, next_ in zip(layout.regions, layout.regions[1:], strict=False)
        for at in range(one.end_bytes, next_.offset_bytes)
    ]
    if padding:
        places["padding"] = dice.choice(padding)
    for name, offset_bytes in places.items():
        yield Flip(name, offset_bytes, dice.randrange(8), _leaf_at(layout, offset_bytes))


def _leaf_at(layout: Layout, offset_bytes: int) -> str | None:
    leaves = (
        leaf.path for leaf in layout.tensors if leaf.offset_bytes <= offset_bytes < leaf.end_bytes
    )
    return next(leaves, None)
