"""Availability: whether a CUDA device can be used in this process, and why not."""

from __future__ import annotations

from functools import cache

from worldline.cuda.runtime import core, failure, runtime
from worldline.errors import Unavailable, WorldlineError


@cache
def unavailable_reason() -> str | None:
    """Why no CUDA device can be used here, in a sentence; None where one can.

    Asked once a process: drivers and devices do not come and go below a running one.
    """
    try:
        core()
        module = runtime()
    except WorldlineError as error:
        return error.message
    status, count = module.cudaGetDeviceCount()
    if int(status):
        return f"no CUDA device can be used: {failure('cudaGetDeviceCount', status).message}"
    return None if count else "the driver finds no CUDA device"


def require() -> None:
    """Return where a CUDA device can be used.

    Raises:
        Unavailable: with the reason in words; reason CUDA_UNAVAILABLE.
    """
    reason = unavailable_reason()
    if reason is not None:
        raise Unavailable(reason, reason="CUDA_UNAVAILABLE")
