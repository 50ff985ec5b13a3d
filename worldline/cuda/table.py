"""Table: constant values in device memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from worldline.cuda.memory import DeviceMemory
from worldline.cuda.stream import Stream

_UPLOAD_TIMEOUT_S = 30.0


def upload(values: npt.NDArray[np.generic], stream: Stream) -> DeviceMemory:
    """Device memory with these values, in their order; ready when this returns.

    Raises:
        CapacityExhausted: the device has no memory for them.
    """
    dense = np.ascontiguousarray(values)
    memory = DeviceMemory(max(dense.nbytes, 1), stream.device_index)
    stream.copy(memory.address, dense.ctypes.data, dense.nbytes)
    stream.wait(_UPLOAD_TIMEOUT_S)
    return memory
