"""Runtime: calls of the CUDA runtime and driver, their errors typed, the packages imported late."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import MappingProxyType
from typing import Any

from worldline.errors import CapacityExhausted, Unavailable, WorldlineError

#: cudaError_t values, which are part of CUDA's ABI.
_SUCCESS = 0
_OUT_OF_MEMORY = 2
NOT_READY = 600
_REASONS = MappingProxyType(
    {
        3: "CUDA_UNAVAILABLE",  # cudaErrorInitializationError
        35: "CUDA_UNAVAILABLE",  # cudaErrorInsufficientDriver
        100: "CUDA_UNAVAILABLE",  # cudaErrorNoDevice
        101: "CUDA_DEVICE_UNKNOWN",  # cudaErrorInvalidDevice
    }
)


@cache
def runtime() -> Any:
    """The module `cuda.bindings.runtime`.

    Raises:
        Unavailable: the package is not installed.
    """
    return _imported("cuda.bindings.runtime")


@cache
def driver() -> Any:
    """The module `cuda.bindings.driver`.

    Raises:
        Unavailable: the package is not installed.
    """
    return _imported("cuda.bindings.driver")


@cache
def core() -> Any:
    """The module `cuda.core`.

    Raises:
        Unavailable: the package is not installed.
    """
    return _imported("cuda.core")


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Unavailable(
            f"{name} cannot be imported: {error}", reason="CUDA_UNAVAILABLE"
        ) from error


def call(name: str, *arguments: Any) -> Any:
    """One call of the runtime; gives what it returns beside the status, None or one value.

    Raises:
        CapacityExhausted: the device or host has no memory for it, reason MEMORY_EXHAUSTED.
        Unavailable: anything else; reason CUDA_UNAVAILABLE where no device can be used at all,
            CUDA_DEVICE_UNKNOWN, or CUDA_FAILED, after which a context is often lost.
    """
    status, *values = getattr(runtime(), name)(*arguments)
    if int(status) != _SUCCESS:
        raise failure(name, status)
    return values[0] if values else None


def is_ready(name: str, handle: int) -> bool:
    """Whether a query (`cudaStreamQuery`, `cudaEventQuery`) finds all work done."""
    status = getattr(runtime(), name)(handle)[0]
    if int(status) == NOT_READY:
        return False
    if int(status) != _SUCCESS:
        raise failure(name, status)
    return True


def failure(name: str, status: Any) -> WorldlineError:
    """The error of a call that did not succeed."""
    module = runtime()
    module.cudaGetLastError()  # or the next call of the thread may report it again
    text = module.cudaGetErrorString(status)[1].decode()
    title = module.cudaGetErrorName(status)[1].decode()
    message = f"{name}: {text} ({title})"
    if int(status) == _OUT_OF_MEMORY:
        return CapacityExhausted(message, reason="MEMORY_EXHAUSTED")
    return Unavailable(message, reason=_REASONS.get(int(status), "CUDA_FAILED"))


def driver_call(name: str, *arguments: Any) -> Any:
    """One call of the driver; otherwise as `call`.

    Raises:
        Unavailable: it did not succeed, reason CUDA_FAILED.
    """
    status, *values = getattr(driver(), name)(*arguments)
    if int(status) != _SUCCESS:
        text = driver().cuGetErrorString(status)[1]
        raise Unavailable(f"{name}: {(text or b'?').decode()}", reason="CUDA_FAILED")
    return values[0] if values else None


def adopt_device(index: int) -> None:
    """Make this the thread's device for good: for threads of our own that serve one.

    Raises:
        Unavailable: no such device.
    """
    call("cudaSetDevice", index)


@contextmanager
def current_device(index: int) -> Iterator[None]:
    """Make this the thread's device, and its own one again after.

    Other libraries (torch, UCX) read the thread's device, so it is never left changed.

    Raises:
        Unavailable: no such device.
    """
    before = call("cudaGetDevice")
    call("cudaSetDevice", index)  # also where it is the same: the first such call makes a context
    try:
        yield
    finally:
        if before != index:
            call("cudaSetDevice", before)
