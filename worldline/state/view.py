"""View: tensors over a slot's bytes, and copies that move bits and not numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from worldline.errors import InvalidInput
from worldline.state.dtypes import itemsize_bytes
from worldline.state.harvest import TORCH_DTYPES
from worldline.state.layout import Layout
from worldline.state.leaf import TensorLeaf, span_elements
from worldline.state.stride import overlaps_itself

#: Integer type of each width: copies go through it, so that no value is ever interpreted.
_BITS: Mapping[int, torch.dtype] = MappingProxyType(
    {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
)


def check_buffer(buffer: object, extent_bytes: int, leaves: Sequence[TensorLeaf]) -> torch.Tensor:
    """The buffer, if it can hold the extent and its leaves are aligned in it.

    Raises:
        InvalidInput: not a plain, contiguous, 1-D uint8 tensor with memory, too short, or at an
            address that misaligns a leaf (named).
    """
    if type(buffer) is not torch.Tensor:
        raise _refused(f"{type(buffer).__name__} is no plain torch.Tensor")
    if buffer.layout is not torch.strided or buffer.device.type == "meta":
        raise _refused("the buffer has no plain memory")
    if buffer.dtype is not torch.uint8 or buffer.dim() != 1 or not buffer.is_contiguous():
        raise _refused(
            f"needs a contiguous 1-D uint8 tensor, got {buffer.dtype} of shape "
            f"{list(buffer.shape)} and stride {buffer.stride()}"
        )
    if buffer.numel() < extent_bytes:
        raise _refused(f"{buffer.numel()} bytes cannot hold an extent of {extent_bytes}")
    for leaf in leaves:
        itemsize = itemsize_bytes(leaf.dtype)
        if buffer.data_ptr() % itemsize or buffer.storage_offset() % itemsize:
            raise InvalidInput(
                f"the buffer's address misaligns {leaf.path} ({leaf.dtype})",
                field="buffer",
                leaf=leaf.path,
            )
    return buffer


def leaf_views(layout: Layout, buffer: torch.Tensor) -> list[torch.Tensor]:
    """One view per tensor leaf, in order; no byte is copied. The buffer was checked before."""
    typed: dict[str, torch.Tensor] = {}
    views = []
    for leaf in layout.tensors:
        itemsize = itemsize_bytes(leaf.dtype)
        if leaf.dtype not in typed:
            if leaf.dtype not in TORCH_DTYPES:
                raise InvalidInput(
                    f"{leaf.path}: this torch ({torch.__version__}) has no {leaf.dtype}",
                    field="layout.tensors.dtype",
                    leaf=leaf.path,
                )
            whole = buffer[: buffer.numel() // itemsize * itemsize]
            typed[leaf.dtype] = whole.view(TORCH_DTYPES[leaf.dtype])
        base = typed[leaf.dtype]
        offset = base.storage_offset() + leaf.offset_bytes // itemsize
        views.append(base.as_strided(leaf.shape, leaf.stride, offset))
    return views


def copy_bits(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy every bit of a tensor into one of the same dtype and shape.

    Expanded dimensions are written once. A view that overlaps itself is copied as its whole span,
    which needs equal strides on both sides.
    """
    if source.numel():
        _bits(_footprint(target)).copy_(_bits(_footprint(source)))


def _footprint(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with each of its memory locations once."""
    shape, stride = tuple(tensor.shape), tensor.stride()
    if overlaps_itself(shape, stride):
        return tensor.as_strided((span_elements(shape, stride),), (1,), tensor.storage_offset())
    once = tuple(slice(0, 1) if step == 0 else slice(None) for step in stride)
    return tensor[once] if once else tensor


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.element_size() == 16:  # complex128: the one type wider than any integer
        tensor = torch.view_as_real(tensor)
    return tensor.view(_BITS[tensor.element_size()])


def _refused(message: str) -> InvalidInput:
    return InvalidInput(f"buffer: {message}", field="buffer")
