"""Carrier: the bits of a state, between tensors of their own and a slot on the same device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from worldline.cuda.buffer import DeviceBuffer
from worldline.cuda.gather import Gather
from worldline.cuda.stream import Stream
from worldline.errors import InvalidInput
from worldline.state.layout import Layout
from worldline.state.tree import same_device
from worldline.state.view import copy_bits, leaf_views


class Carrier(Protocol):
    """Made once for a session's tensors; copies as often as wanted."""

    def to_slot(self, slot: torch.Tensor) -> None:
        """Copy every leaf into the slot; on a GPU queued, not waited for."""

    def to_tensors(self, slot: torch.Tensor) -> None:
        """Copy every leaf out of the slot; on a GPU queued, not waited for."""

    def close(self) -> None:
        """Give back what it holds; the tensors are left as they are."""


def carrier_for(layout: Layout, tensors: Sequence[torch.Tensor], slot: torch.Tensor) -> Carrier:
    """The carrier for tensors in the layout's order, of its dtypes and shapes.

    Raises:
        InvalidInput: a tensor lies on another device than the slot; `leaf` says which.
        Unavailable: the slot is on a GPU for which nothing can be compiled.
    """
    for leaf, tensor in zip(layout.tensors, tensors, strict=True):
        if not same_device(tensor.device, slot.device):
            raise InvalidInput(
                f"{leaf.path} lies on {tensor.device}, the slot on {slot.device}",
                field="state",
                leaf=leaf.path,
            )
    if slot.device.type == "cpu":
        return HostCarrier(layout, tensors)
    return CudaCarrier(layout, tensors, slot.device.index or 0)


class HostCarrier:
    """Copies leaf by leaf: a host's memory is no faster for being asked all at once."""

    def __init__(self, layout: Layout, tensors: Sequence[torch.Tensor]) -> None:
        self._layout = layout
        self._tensors = tuple(tensors)

    def to_slot(self, slot: torch.Tensor) -> None:
        """See `Carrier`."""
        for tensor, view in zip(self._tensors, leaf_views(self._layout, slot), strict=True):
            copy_bits(tensor, view)

    def to_tensors(self, slot: torch.Tensor) -> None:
        """See `Carrier`."""
        for tensor, view in zip(self._tensors, leaf_views(self._layout, slot), strict=True):
            copy_bits(view, tensor)

    def close(self) -> None:
        """See `Carrier`."""
        self._tensors = ()


class CudaCarrier:
    """Copies all leaves in one launch, on a stream of its own."""

    def __init__(self, layout: Layout, tensors: Sequence[torch.Tensor], device_index: int) -> None:
        self._stream = Stream(device_index)
        self._gather = Gather(layout, tensors, self._stream)

    def to_slot(self, slot: torch.Tensor) -> None:
        """See `Carrier`."""
        self._gather.gather(self._buffer(slot))

    def to_tensors(self, slot: torch.Tensor) -> None:
        """See `Carrier`."""
        self._gather.scatter(self._buffer(slot))

    def close(self) -> None:
        """See `Carrier`."""
        self._gather.close()
        self._stream.close()

    def _buffer(self, slot: torch.Tensor) -> DeviceBuffer:
        return DeviceBuffer(slot.data_ptr(), slot.numel(), self._stream.device_index, slot)
