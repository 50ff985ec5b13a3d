"""Gather: all leaves between tensors of their own and a slot on the same device, in one launch.

For engines whose model insists on its own tensors. Copying hundreds of leaves one by one costs
several times what the bytes cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from worldline.cuda.buffer import DeviceBuffer
from worldline.cuda.devices import devices
from worldline.cuda.kernel import Arguments, Kernel
from worldline.cuda.stream import Stream
from worldline.cuda.table import upload
from worldline.errors import InvalidInput
from worldline.state.layout import Layout
from worldline.state.leaf import TensorLeaf
from worldline.state.stride import is_dense

if TYPE_CHECKING:
    import torch

#: Of the kernel: bytes that a block of threads copies before it looks for more.
UNIT_BYTES = 64 << 10
LEAF_DTYPE = np.dtype([("address", "<u8"), ("offset_bytes", "<u8"), ("size_bytes", "<u8")])

_THREADS = 256
_BLOCKS_PER_MULTIPROCESSOR = 8


class Gather:
    """Copies the leaves of one layout to and from these tensors, as often as wanted.

    `tensors` has the tensor of each leaf, in the layout's order, all on one device. Leaves whose
    bytes lie as in the slot go in one launch; those that are strided otherwise, or have gaps, are
    copied one by one behind it. The bits are copied, whatever they mean.

    Raises:
        InvalidInput: a tensor is missing, or has another dtype, shape or device; `leaf` says which.
        Unavailable: no CUDA device, or no compiler.
        CapacityExhausted: no memory for the table of leaves.
    """

    def __init__(self, layout: Layout, tensors: Sequence[torch.Tensor], stream: Stream) -> None:
        _check(layout, tensors, stream.device_index)
        self._layout = layout
        self._stream = stream
        self._tensors = list(tensors)  # alive as long as their addresses are used
        flat = [lies_as_in_slot(*pair) for pair in zip(layout.tensors, tensors, strict=True)]
        self._strided = [index for index, is_flat in enumerate(flat) if not is_flat]
        rows = leaf_table(
            [
                (leaf, tensor.data_ptr())
                for leaf, tensor, is_flat in zip(layout.tensors, tensors, flat, strict=True)
                if is_flat
            ]
        )
        units = units_of(rows)
        self._count = len(rows)
        self._blocks = min(
            int(units[-1]),
            _BLOCKS_PER_MULTIPROCESSOR * devices()[stream.device_index].multiprocessor_count,
        )
        self._kernel = Kernel("gather", stream.device_index)
        self._arguments = Arguments(5)
        self._rows = upload(rows, stream)
        self._units = upload(units, stream)

    def gather(self, slot: DeviceBuffer) -> None:
        """Queue the copies from the tensors into the slot; returns without waiting.

        Work on the tensors in other streams is not waited for: see `Stream.follow`.

        Raises:
            InvalidInput: the slot is shorter than the extent, or on another device.
        """
        self._copy(slot, scatter=False)

    def scatter(self, slot: DeviceBuffer) -> None:
        """Queue the copies from the slot into the tensors; returns without waiting.

        Work on the tensors in other streams does not wait for this: see `Stream.precede`.

        Raises:
            InvalidInput: the slot is shorter than the extent, or on another device.
        """
        self._copy(slot, scatter=True)

    def close(self) -> None:
        """Give the tables back; waits for the device's work."""
        self._rows.close()
        self._units.close()

    def _copy(self, slot: DeviceBuffer, *, scatter: bool) -> None:
        if slot.nbytes < self._layout.extent_bytes:
            raise InvalidInput(
                f"a slot of {slot.nbytes} bytes cannot hold an extent of "
                f"{self._layout.extent_bytes}",
                field="slot",
            )
        if slot.device_index != self._stream.device_index:
            raise InvalidInput(f"a slot on cuda:{slot.device_index}", field="slot")
        if self._blocks:
            arguments = self._arguments.set(
                slot.address, self._rows.address, self._units.address, self._count, scatter
            )
            self._kernel.launch(self._stream, self._blocks, _THREADS, arguments)
        if self._strided:
            self._copy_strided(slot, scatter=scatter)

    def _copy_strided(self, slot: DeviceBuffer, *, scatter: bool) -> None:
        import torch

        from worldline.state.view import copy_bits, leaf_views

        views = leaf_views(self._layout, slot.tensor())
        with torch.cuda.stream(
            torch.cuda.ExternalStream(self._stream.handle, self._stream.device_index)
        ):
            for index in self._strided:
                pair = (self._tensors[index], views[index])
                copy_bits(*(reversed(pair) if scatter else pair))


def lies_as_in_slot(leaf: TensorLeaf, tensor: torch.Tensor) -> bool:
    """Whether the tensor's bytes, from its first, are the leaf's span to the byte, without gaps."""
    strides = zip(leaf.shape, leaf.stride, tensor.stride(), strict=True)
    same = all(here == there for size, here, there in strides if size > 1)
    return not leaf.size_bytes or (same and is_dense(leaf.shape, leaf.stride))


def leaf_table(leaves: Sequence[tuple[TensorLeaf, int]]) -> npt.NDArray[np.void]:
    """The kernel's `Leaf` for each leaf and the address of its own bytes."""
    rows = [(address, leaf.offset_bytes, leaf.span_bytes) for leaf, address in leaves]
    return np.array(rows, LEAF_DTYPE)


def units_of(rows: npt.NDArray[np.void]) -> npt.NDArray[np.uint32]:
    """Units before each leaf, and after the last."""
    units = -(-rows["size_bytes"].astype(np.int64) // UNIT_BYTES)
    return np.append(0, np.cumsum(units)).astype(np.uint32)


def _check(layout: Layout, tensors: Sequence[torch.Tensor], device_index: int) -> None:
    if len(tensors) != len(layout.tensors):
        raise InvalidInput(
            f"{len(tensors)} tensors for {len(layout.tensors)} leaves", field="tensors"
        )
    for leaf, tensor in zip(layout.tensors, tensors, strict=True):
        found = (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), str(tensor.device))
        wanted = (leaf.dtype, leaf.shape, f"cuda:{device_index}")
        if found != wanted:
            raise InvalidInput(
                f"{leaf.path}: a tensor of {found} instead of {wanted}",
                field="tensors",
                leaf=leaf.path,
            )
