"""Layout: where every leaf of a state tree lies in a slot. A `Layout` that exists is valid.

It holds no memory and needs no torch. `tree.plan` and `tree.layout_of` make one from tensors,
`codec.layout_from_proto` from a message; both end in the same checks (`validation`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from worldline.errors import InvalidInput
from worldline.state.leaf import Region, ScalarLeaf, TensorLeaf
from worldline.state.node import (
    DictNode,
    ListNode,
    Node,
    RecordNode,
    ScalarNode,
    TensorNode,
    TupleNode,
)
from worldline.state.regions import derive_regions
from worldline.state.scalar import ScalarValue
from worldline.state.topology import topology_hash
from worldline.state.validation import LAYOUT_VERSION, check_layout, check_leaves

__all__ = [
    "LAYOUT_VERSION",
    "DictNode",
    "Layout",
    "ListNode",
    "Node",
    "RecordNode",
    "Region",
    "ScalarLeaf",
    "ScalarNode",
    "TensorLeaf",
    "TensorNode",
    "TupleNode",
    "flat_layout",
]


@dataclass(frozen=True)
class Layout:
    """Where every leaf of one state tree lies in a slot.

    Raises:
        InvalidInput: anything does not hold together; `leaf` names the leaf at fault.
        VersionSkew: the version is not the one this code speaks.
    """

    version: int
    regions: tuple[Region, ...]
    tensors: tuple[TensorLeaf, ...]
    scalars: tuple[ScalarLeaf, ...]
    root: Node
    #: Bytes of the slot that a move ships, from its start: the end of the last region.
    extent_bytes: int
    #: SHA-256 over everything above except scalar values; given or computed, always right.
    topology_hash: bytes = b""

    def __post_init__(self) -> None:
        check_layout(
            version=self.version,
            regions=self.regions,
            tensors=self.tensors,
            scalars=self.scalars,
            root=self.root,
            extent_bytes=self.extent_bytes,
        )
        actual = topology_hash(
            version=self.version,
            extent_bytes=self.extent_bytes,
            tensors=self.tensors,
            regions=self.regions,
            scalars=self.scalars,
            root=self.root,
        )
        if self.topology_hash not in (b"", actual):
            raise InvalidInput(
                f"topology hash {self.topology_hash.hex()} is not that of the layout, "
                f"{actual.hex()}",
                field="layout.topology_hash",
            )
        object.__setattr__(self, "topology_hash", actual)

    @classmethod
    def build(
        cls,
        *,
        tensors: Sequence[TensorLeaf],
        scalars: Sequence[ScalarLeaf],
        root: Node,
    ) -> Layout:
        """A layout from leaves alone: regions, extent and hash follow from their offsets.

        `TensorLeaf.region` is filled in here; what the caller put there does not matter.
        """
        regions, member_of = derive_regions(check_leaves(tensors))
        placed = tuple(
            replace(leaf, region=index) for leaf, index in zip(tensors, member_of, strict=True)
        )
        return cls(
            version=LAYOUT_VERSION,
            regions=regions,
            tensors=placed,
            scalars=tuple(scalars),
            root=root,
            extent_bytes=max((region.end_bytes for region in regions), default=0),
        )

    def with_scalars(self, values: Mapping[str, ScalarValue]) -> Layout:
        """The same topology with new values for some scalars, by path; cheap, for every block.

        Raises:
            InvalidInput: a path that is no scalar of this layout, or a value that is no scalar.
        """
        known = {scalar.path for scalar in self.scalars}
        for path in sorted(values):
            if path not in known:
                raise InvalidInput(f"no scalar {path!r} in this layout", field="scalar", leaf=path)
        scalars = tuple(
            ScalarLeaf(scalar.path, values.get(scalar.path, scalar.value))
            for scalar in self.scalars
        )
        for scalar in scalars:
            scalar.canonical()
        other = copy.copy(self)  # topology is unchanged, so it needs no second check
        object.__setattr__(other, "scalars", scalars)
        return other

    def scalar_values(self) -> dict[str, ScalarValue]:
        """The scalars' values by path."""
        return {scalar.path: scalar.value for scalar in self.scalars}


def flat_layout(path: str, size_bytes: int) -> Layout:
    """A tree that is a dict of one uint8 tensor: for probes and for bytes without structure.

    Raises:
        InvalidInput: `path` is no ASCII identifier, or the size is negative or beyond 2**63 - 1.
    """
    leaf = TensorLeaf(
        path=path,
        dtype="uint8",
        shape=(size_bytes,),
        stride=(1,),
        offset_bytes=0,
        size_bytes=size_bytes,
        region=0,
    )
    return Layout.build(tensors=(leaf,), scalars=(), root=DictNode(((path, TensorNode(0)),)))
