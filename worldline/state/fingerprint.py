"""Fingerprint of this process: what its next frame depends on beside the state.

A T0 session moves only between equal fingerprints (invariant I6; section 6.1 of arXiv 2607.10389):
same architecture and instruction set (kernels are picked by it), thread count (it splits
reductions), libraries, kernels that may be chosen, precision of products and sums, number of
sessions in one pass, engine code and weights. Facts are read from the process as it is now; take
the fingerprint after configuring it. How to make a fact equal on two engines: `remedies`.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from worldline.errors import InvalidInput
from worldline.fields import whole
from worldline.state.gpu_facts import gpu_facts
from worldline.state.manifest import Fingerprint

#: Environment that makes libraries below torch choose other kernels.
_NUMERICS_ENVIRONMENT = (
    "ATEN_CPU_CAPABILITY",
    "CUBLASLT_WORKSPACE_SIZE",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDNN_CONV_WSCAP_DBG",
    "DISABLE_ADDMM_CUDA_LT",
    "DNNL_CPU_ISA_HINTS",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "KMP_DETERMINISTIC_REDUCTION",
    "KMP_FORCE_REDUCTION",
    "MKL_CBWR",
    "MKL_DYNAMIC",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_DYNAMIC",
    "ONEDNN_CPU_ISA_HINTS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "TORCHINDUCTOR_BATCH_INVARIANT",
    "TORCHINDUCTOR_EMULATE_PRECISION_CASTS",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCHINDUCTOR_SPLIT_REDUCTIONS",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_CUDNN_V8_API_DISABLED",
)
_CPUINFO = Path("/proc/cpuinfo")


def cpu_fingerprint(
    *,
    engine_code: str,
    weights_digest: str,
    threads: int | None = None,
    sessions_per_pass: int = 1,
) -> Fingerprint:
    """The fingerprint of this process on its CPU.

    `engine_code` names the exact code (see `code_digest`), `weights_digest` the exact weights.
    `threads` is how many this process is meant to compute with; None takes what torch has.
    `sessions_per_pass` is how many sessions one model pass computes at most: a batch decides which
    kernel runs and how its sums are split.

    Raises:
        InvalidInput: torch computes with another number of threads, an argument is empty, or a
            pass computes less than one session.
    """
    capabilities = _capabilities()
    return Fingerprint.of(
        _common_facts(engine_code, weights_digest, threads, sessions_per_pass)
        | {
            "device": "cpu",
            "cpu_vendor": _cpu_vendor(_CPUINFO),
            "cpu_features": _cpu_features(capabilities),
            "caches": _caches(capabilities),
            **_onednn(),
        }
    )


def cuda_fingerprint(
    *,
    device_index: int,
    engine_code: str,
    weights_digest: str,
    threads: int | None = None,
    sessions_per_pass: int = 1,
) -> Fingerprint:
    """The fingerprint of this process on a GPU; arguments as for `cpu_fingerprint`.

    Facts of the CPU that stay are those of what a model draws there (its noise) and sends over.

    Raises:
        InvalidInput: as `cpu_fingerprint`.
        Unavailable: there is no such GPU.
    """
    facts = _common_facts(engine_code, weights_digest, threads, sessions_per_pass)
    return Fingerprint.of(facts | {"device": "cuda"} | gpu_facts(device_index))


def _common_facts(
    engine_code: str, weights_digest: str, threads: int | None, sessions_per_pass: int
) -> dict[str, str]:
    actual = torch.get_num_threads()
    if threads is not None and threads != actual:
        raise InvalidInput(
            f"torch computes with {actual} threads, not {threads}; call torch.set_num_threads",
            field="threads",
        )
    for name, value in (("engine_code", engine_code), ("weights_digest", weights_digest)):
        if not value:
            raise InvalidInput(f"{name} is empty", field=name)
    whole(sessions_per_pass, "sessions_per_pass", at_least=1)
    return {
        "architecture": platform.machine(),
        "byte_order": sys.byteorder,
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "threads": str(actual),
        "torch": torch.__version__,
        "torch_build": _torch_build(),
        "triton": _version("triton"),
        "attention": _attention(),
        "attention_reduction": _reduced(),
        "matmul_precision": _matmul_precision(),
        "default_dtype": str(torch.get_default_dtype()),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "flush_denormal": str(_flushes_denormals()),
        "numerics_environment": _environment(os.environ),
        "sessions_per_pass": str(sessions_per_pass),
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


def _cpu_vendor(path: Path) -> str:
    """MKL picks its kernels by whose CPU it is, beside what that can do."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return "unknown"
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id"))
    return next(named, "unknown")


def _onednn() -> dict[str, str]:
    """Switches of oneDNN, which torch calls mkldnn. Rounding of products is a fact by itself."""
    onednn: Any = torch.backends.mkldnn
    kinds = ("matmul", "conv", "rnn")
    rounding = {kind: getattr(onednn, kind).fp32_precision for kind in kinds}
    return {
        "onednn": str(onednn.enabled),
        "onednn_deterministic": str(onednn.deterministic),
        # What was never set rounds as what was set to IEEE's.
        "onednn_fp32": " ".join(
            f"{kind}={'ieee' if precision == 'none' else precision}"
            for kind, precision in rounding.items()
        ),
    }


def _torch_build() -> str:
    """Compiler, libraries and options that torch was built with; not what it found on this CPU."""
    lines = torch.__config__.show().splitlines()
    built = [line for line in lines if "CPU capability usage" not in line]
    return hashlib.sha256("\n".join(built).encode()).hexdigest()[:16]


def _matmul_precision() -> str:
    """As torch sums it up; it cannot where backends were set one by one, which are facts too."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "by backend"


def _attention() -> str:
    """Kernels that scaled dot-product attention may choose from, on any device."""
    cuda: Any = torch.backends.cuda
    kernels = {
        "cudnn": cuda.cudnn_sdp_enabled(),
        "efficient": cuda.mem_efficient_sdp_enabled(),
        "flash": cuda.flash_sdp_enabled(),
        "math": cuda.math_sdp_enabled(),
    }
    return " ".join(name for name, enabled in kernels.items() if enabled) or "none"


def _reduced() -> str:
    """Whether attention by plain products may sum in half precision."""
    cuda: Any = torch.backends.cuda
    return "half" if cuda.fp16_bf16_reduction_math_sdp_allowed() else "full"


def _version(package: str) -> str:
    """Of a package that compiles kernels; it need not be there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _flushes_denormals() -> bool:
    """Whether the smallest denormal double times one becomes zero on this thread."""
    return bool((torch.tensor([5e-324], dtype=torch.float64) * 1.0).item() == 0.0)


def _environment(environment: Mapping[str, str]) -> str:
    found = [f"{name}={environment[name]}" for name in _NUMERICS_ENVIRONMENT if name in environment]
    return " ".join(found) or "none"
