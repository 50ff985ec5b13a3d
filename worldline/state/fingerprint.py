"""Fingerprint of this process: what its next frame depends on beside the state.

A T0 session moves only between equal fingerprints: same architecture and instruction set (kernels
are picked by it), thread count (it splits reductions), torch, numerics flags, engine code and
weights. Facts are read from the process as it is now; take the fingerprint after configuring it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from worldline.errors import InvalidInput
from worldline.state.gpu_facts import gpu_facts
from worldline.state.manifest import Fingerprint

#: Environment that makes libraries below torch choose other kernels.
_NUMERICS_ENVIRONMENT = (
    "ATEN_CPU_CAPABILITY",
    "CUBLASLT_WORKSPACE_SIZE",
    "CUBLAS_WORKSPACE_CONFIG",
    "DISABLE_ADDMM_CUDA_LT",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "TORCH_BLAS_PREFER_CUBLASLT",
)


def cpu_fingerprint(
    *, engine_code: str, weights_digest: str, threads: int | None = None
) -> Fingerprint:
    """The fingerprint of this process on its CPU.

    `engine_code` names the exact code (see `code_digest`), `weights_digest` the exact weights.
    `threads` is how many this process is meant to compute with; None takes what torch has.

    Raises:
        InvalidInput: torch computes with another number of threads, or an argument is empty.
    """
    capabilities = _capabilities()
    return Fingerprint.of(
        _common_facts(engine_code, weights_digest, threads)
        | {
            "device": "cpu",
            "cpu_features": _cpu_features(capabilities),
            "caches": _caches(capabilities),
            "mkldnn": str(torch.backends.mkldnn.enabled),
        }
    )


def cuda_fingerprint(
    *, device_index: int, engine_code: str, weights_digest: str, threads: int | None = None
) -> Fingerprint:
    """The fingerprint of this process on a GPU; arguments as for `cpu_fingerprint`.

    Facts of the CPU that stay are those of what a model draws there (its noise) and sends over.

    Raises:
        InvalidInput: as `cpu_fingerprint`.
        Unavailable: there is no such GPU.
    """
    facts = _common_facts(engine_code, weights_digest, threads)
    return Fingerprint.of(facts | {"device": "cuda"} | gpu_facts(device_index))


def _common_facts(engine_code: str, weights_digest: str, threads: int | None) -> dict[str, str]:
    actual = torch.get_num_threads()
    if threads is not None and threads != actual:
        raise InvalidInput(
            f"torch computes with {actual} threads, not {threads}; call torch.set_num_threads",
            field="threads",
        )
    for name, value in (("engine_code", engine_code), ("weights_digest", weights_digest)):
        if not value:
            raise InvalidInput(f"{name} is empty", field=name)
    return {
        "architecture": platform.machine(),
        "byte_order": sys.byteorder,
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "threads": str(actual),
        "torch": torch.__version__,
        "torch_build": hashlib.sha256(torch.__config__.show().encode()).hexdigest()[:16],
        "matmul_precision": torch.get_float32_matmul_precision(),
        "default_dtype": str(torch.get_default_dtype()),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "flush_denormal": str(_flushes_denormals()),
        "numerics_environment": _environment(os.environ),
        "engine_code": engine_code,
        "weights": weights_digest,
    }


def code_digest(root: Path) -> str:
    """SHA-256 (hex) over all Python files below a directory: relative names and contents."""
    digest = hashlib.sha256(b"worldline.code\0")
    files = sorted(root.rglob("*.py"), key=lambda file: file.relative_to(root).as_posix())
    if not files:
        raise InvalidInput(f"no Python file below {root}", field="root")
    for file in files:
        for part in (file.relative_to(root).as_posix().encode(), file.read_bytes()):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _capabilities() -> Mapping[str, object]:
    read = getattr(torch.cpu, "get_capabilities", None)  # newer than the oldest torch we run on
    capabilities: Mapping[str, object] = {} if read is None else read()
    return capabilities


def _cpu_features(capabilities: Mapping[str, object]) -> str:
    """Instruction-set extensions: oneDNN and MKL pick by them, finer than torch's levels."""
    return " ".join(sorted(name for name, has in capabilities.items() if has is True)) or "unknown"


def _caches(capabilities: Mapping[str, object]) -> str:
    """Cache sizes: matrix products are blocked by them, and blocks order the sums."""
    return " ".join(
        f"{name}={capabilities[name]}" for name in sorted(capabilities) if "cache" in name
    )


def _flushes_denormals() -> bool:
    """Whether the smallest denormal double times one becomes zero on this thread."""
    return bool((torch.tensor([5e-324], dtype=torch.float64) * 1.0).item() == 0.0)


def _environment(environment: Mapping[str, str]) -> str:
    found = [f"{name}={environment[name]}" for name in _NUMERICS_ENVIRONMENT if name in environment]
    return " ".join(found) or "none"
