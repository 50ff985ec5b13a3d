"""Leaf: one tensor or scalar of the state tree, and the region of the slot that holds a tensor."""

from __future__ import annotations

from dataclasses import dataclass

from worldline.state.dtypes import itemsize_bytes
from worldline.state.scalar import Kind, ScalarValue, encode


@dataclass(frozen=True, slots=True)
class Region:
    """A contiguous run of bytes of the slot that is moved once. Regions never overlap."""

    offset_bytes: int
    size_bytes: int

    @property
    def end_bytes(self) -> int:
        """First byte behind the region."""
        return self.offset_bytes + self.size_bytes


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """One tensor: what it is (path, dtype, shape) and where its elements lie in the slot."""

    path: str
    #: torch's name without the prefix, see `dtypes`.
    dtype: str
    shape: tuple[int, ...]
    #: In elements, one per dimension; 0 for an expanded dimension.
    stride: tuple[int, ...]
    #: Of the first element, from the start of the slot.
    offset_bytes: int
    #: Element count times element size: what the leaf means, not what it occupies.
    size_bytes: int
    #: Index into `Layout.regions`.
    region: int

    @property
    def span_bytes(self) -> int:
        """Bytes from the first to behind the last element in memory; 0 for an empty leaf."""
        return span_elements(self.shape, self.stride) * itemsize_bytes(self.dtype, leaf=self.path)

    @property
    def end_bytes(self) -> int:
        """First byte behind the leaf's bounding span."""
        return self.offset_bytes + self.span_bytes


@dataclass(frozen=True, slots=True, eq=False)
class ScalarLeaf:
    """One Python scalar; its value travels in the manifest. Equality is of type and bits."""

    path: str
    value: ScalarValue

    def canonical(self) -> tuple[Kind, bytes]:
        """Kind and payload; raises InvalidInput for what is no scalar."""
        return encode(self.value, leaf=self.path)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ScalarLeaf):
            return NotImplemented
        return self.path == other.path and self.canonical() == other.canonical()

    def __hash__(self) -> int:
        return hash((self.path, self.canonical()))


def span_elements(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements from the first to behind the last one in memory; 0 when the shape holds none."""
    if 0 in shape:
        return 0
    last = 0
    for size, step in zip(shape, stride, strict=True):
        last += (size - 1) * step
    return last + 1
