"""GPU facts: what decides the bits of a GPU's results, for the configuration fingerprint.

The device's index and UUID are not among them: equal GPUs under equal software are equal.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import torch

from worldline.cuda.devices import devices
from worldline.cuda.runtime import call
from worldline.errors import Unavailable

_DRIVER = Path("/proc/driver/nvidia/version")
#: Parts of a version, as cublasGetProperty numbers them: major, minor, patch.
_VERSION_PARTS = (0, 1, 2)


def gpu_facts(device_index: int, driver: Path = _DRIVER) -> dict[str, str]:
    """Architecture, driver, CUDA libraries and the switches that choose kernels.

    Raises:
        Unavailable: there is no such GPU.
    """
    found = devices()
    if not 0 <= device_index < len(found):
        raise Unavailable(f"there is no cuda:{device_index} here", reason="CUDA_DEVICE_UNKNOWN")
    gpu = found[device_index]
    return {
        "gpu": gpu.name,
        "compute_capability": "{}.{}".format(*gpu.compute_capability),
        # cuBLAS picks kernels by it; slices of one GPU differ in nothing else.
        "multiprocessors": str(gpu.multiprocessor_count),
        "driver": _driver_version(driver),
        "driver_api": str(call("cudaDriverGetVersion")),
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
        # A pinned torch does not pin it: another cuBLAS may come with another package.
        "cublas": _cublas_version(str(torch.version.cuda).partition(".")[0]),
        **_switches(),
    }


def _switches() -> dict[str, str]:
    """Flags of torch by which kernels are chosen or sums are rounded."""
    cuda: Any = torch.backends.cuda
    cudnn: Any = torch.backends.cudnn
    matmul = cuda.matmul
    return {
        "matmul_fp32": str(matmul.fp32_precision),
        "matmul_fp16_reduction": str(matmul.allow_fp16_reduced_precision_reduction),
        "matmul_bf16_reduction": str(matmul.allow_bf16_reduced_precision_reduction),
        "matmul_fp16_accumulation": str(matmul.allow_fp16_accumulation),
        "blas": str(cuda.preferred_blas_library()),
        "linalg": str(cuda.preferred_linalg_library()),
        "cudnn_conv_fp32": str(cudnn.conv.fp32_precision),
        "cudnn_enabled": str(cudnn.enabled),
        "cudnn_benchmark": str(cudnn.benchmark),
        "cudnn_deterministic": str(cudnn.deterministic),
        "cudnn_rnn_fp32": str(cudnn.rnn.fp32_precision),
    }


def _cublas_version(major: str) -> str:
    """Of the cuBLAS that this process has loaded; unknown where it has none."""
    try:
        library = ctypes.CDLL(f"libcublas.so.{major}")
        read = library.cublasGetProperty
    except (OSError, AttributeError):
        return "unknown"
    parts = []
    for part in _VERSION_PARTS:
        value = ctypes.c_int()
        if read(part, ctypes.byref(value)) != 0:
            return "unknown"
        parts.append(str(value.value))
    return ".".join(parts)


def _driver_version(path: Path) -> str:
    """The kernel module's version, which the API's number only bounds."""
    try:
        found = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", path.read_text())
    except OSError:
        return "unknown"
    return found[0] if found else "unknown"
