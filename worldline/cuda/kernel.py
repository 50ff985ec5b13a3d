"""Kernel: a function of a `.cu` file beside this one, compiled for a device when first needed.

NVRTC compiles in under a second, once for every architecture in a process; there is no build step
and no binary in the package.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from importlib.resources import files
from typing import Any

from worldline.cuda.devices import devices
from worldline.cuda.runtime import core, current_device, driver, driver_call
from worldline.cuda.stream import Stream
from worldline.errors import InvalidInput, Unavailable

_compiling = threading.Lock()


class Arguments:
    """What a kernel is launched with: integers and addresses, in the order of its parameters.

    Kept from launch to launch, because making them costs more than the launch. Not for several
    threads at once.
    """

    def __init__(self, count: int) -> None:
        # A parameter of 32 bits is read from the low half: CUDA's hosts are little-endian.
        self._values = (ctypes.c_uint64 * count)()
        begins = ctypes.addressof(self._values)
        self._pointers = (ctypes.c_void_p * count)(*(begins + 8 * index for index in range(count)))
        self.address = ctypes.addressof(self._pointers)

    def set(self, *values: int) -> Arguments:
        """These values; as many as there are parameters."""
        self._values[:] = list(values)
        return self


class Kernel:
    """One `extern "C"` function on one device, ready to be launched from any thread.

    `shared_bytes` is the dynamic shared memory of a block.

    Raises:
        InvalidInput: no such device.
        Unavailable: there is no compiler (reason COMPILER_UNAVAILABLE), or the device cannot give
            that much shared memory.
    """

    def __init__(self, name: str, device_index: int, *, shared_bytes: int = 0) -> None:
        found = devices()
        if not 0 <= device_index < len(found):
            raise InvalidInput(f"device {device_index} of {len(found)}", field="device_index")
        major, minor = found[device_index].compute_capability
        self.device_index = device_index
        self._shared_bytes = shared_bytes
        with _compiling, current_device(device_index):
            # Kept, since the code is unloaded with the last reference to it.
            self._function = _compiled(name, f"sm_{major}{minor}").get_kernel(name)
            self._handle = int(self._function.handle)
            if shared_bytes:
                limit = driver().CUfunction_attribute
                driver_call(
                    "cuKernelSetAttribute",
                    limit.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    shared_bytes,
                    self._handle,
                    device_index,
                )

    def launch(self, stream: Stream, blocks: int, threads: int, arguments: Arguments) -> None:
        """Queue one run; the arguments may have others' values as soon as this returns.

        Raises:
            Unavailable: it cannot be queued, or the context was lost before.
        """
        with current_device(self.device_index):
            driver_call(
                "cuLaunchKernel",
                self._handle,
                *(blocks, 1, 1),
                *(threads, 1, 1),
                self._shared_bytes,
                stream.handle,
                arguments.address,
                0,
            )


@cache
def _compiled(name: str, architecture: str) -> Any:
    """The object code of `name.cu` for an architecture such as sm_90."""
    module = core()
    source = files(__package__).joinpath(f"{name}.cu").read_text()
    options = module.ProgramOptions(name=f"{name}.cu", std="c++17", arch=architecture)
    try:
        return module.Program(source, "c++", options=options).compile("cubin")
    except Exception as error:  # the package's own classes, and those of its loader
        raise Unavailable(
            f"{name}.cu cannot be compiled for {architecture}: {error}",
            reason="COMPILER_UNAVAILABLE",
        ) from error
