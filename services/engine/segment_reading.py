"""Segment reading: the digests of a state's segments, where its bytes rest."""

from __future__ import annotations

import torch

from worldline.cuda.buffer import DeviceBuffer
from worldline.cuda.digest import CudaDigester
from worldline.state.digest import Digester
from worldline.state.gf2 import Uint64s
from worldline.state.layout import Layout


def read_segments(layout: Layout, buffer: torch.Tensor, granule_bytes: int) -> Uint64s:
    """CRC of every segment of the layout at this granule; `buffer` is 1-D uint8 and at rest.

    Waits for the device, without holding the interpreter.
    """
    extent = buffer[: layout.extent_bytes]
    if buffer.device.type == "cpu":
        digester = Digester(layout, granule_bytes)
        digester.update(0, digester.granule_count, extent.numpy().data)
        return digester.segment_crcs()
    index = buffer.device.index or 0
    on_device = CudaDigester(layout, index, granule_bytes)
    try:
        run = DeviceBuffer(extent.data_ptr(), layout.extent_bytes, index, extent)
        on_device.update(0, on_device.granule_count, run)
        return on_device.segment_crcs()
    finally:
        on_device.close()
