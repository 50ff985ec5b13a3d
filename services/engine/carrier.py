"""Carrier: the bits of a state, between tensors of their own and a slot on the same device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from services.engine.parts import Parts, by_parts, exhaust
from worldline.cuda.buffer import DeviceBuffer
from worldline.cuda.gather import Gather
from worldline.cuda.stream import Stream
from worldline.errors import InvalidInput
from worldline.state.layout import Layout
from worldline.state.tree import same_device
from worldline.state.view import copy_bits, leaf_views


class Carrier(ABC):
    """Made once for a session's tensors; copies as often as wanted."""

    @abstractmethod
    def storing(self, slot: torch.Tensor) -> Parts[None]:
        """Copy every leaf into the slot; on a GPU queued, not waited for."""

    @abstractmethod
    def loading(self, slot: torch.Tensor) -> Parts[None]:
        """Copy every leaf out of the slot; on a GPU queued, not waited for."""

    def to_slot(self, slot: torch.Tensor) -> None:
        """`storing`, at once."""
        exhaust(self.storing(slot))

    def to_tensors(self, slot: torch.Tensor) -> None:
        """`loading`, at once."""
        exhaust(self.loading(slot))

    @abstractmethod
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


class HostCarrier(Carrier):
    """Copies part by part: a host's memory is no faster for being asked all at once."""

    def __init__(self, layout: Layout, tensors: Sequence[torch.Tensor]) -> None:
        self._layout = layout
        self._tensors = tuple(tensors)

    def storing(self, slot: torch.Tensor) -> Parts[None]:
        """See `Carrier`."""
        yield from _copied(self._tensors, leaf_views(self._layout, slot))

    def loading(self, slot: torch.Tensor) -> Parts[None]:
        """See `Carrier`."""
        yield from _copied(leaf_views(self._layout, slot), self._tensors)

    def close(self) -> None:
        """See `Carrier`."""
        self._tensors = ()


class CudaCarrier(Carrier):
    """Copies all leaves in one launch, on a stream of its own."""

    def __init__(self, layout: Layout, tensors: Sequence[torch.Tensor], device_index: int) -> None:
        self._stream = Stream(device_index)
        self._gather = Gather(layout, tensors, self._stream)

    def storing(self, slot: torch.Tensor) -> Parts[None]:
        """See `Carrier`. A GPU copies gigabytes in milliseconds: one part."""
        self._gather.gather(self._buffer(slot))
        yield from ()

    def loading(self, slot: torch.Tensor) -> Parts[None]:
        """See `Carrier`."""
        self._gather.scatter(self._buffer(slot))
        yield from ()

    def close(self) -> None:
        """See `Carrier`."""
        self._gather.close()
        self._stream.close()

    def _buffer(self, slot: torch.Tensor) -> DeviceBuffer:
        return DeviceBuffer(slot.data_ptr(), slot.numel(), self._stream.device_index, slot)


def _copied(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> Parts[None]:
    """Every bit of tensors into others of the same shapes."""

    def copy(number: int, index: tuple[slice, ...]) -> None:
        copy_bits(sources[number][index], targets[number][index])

    yield from by_parts(targets, copy)
