"""Remedies: in words, where two configuration fingerprints differ and how to make them equal. Pure.

A fact that nobody wrote a remedy for is named all the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from worldline.state.manifest import Fingerprint

_SAME_CPU = "put both engines on CPUs of one kind"
_SAME_GPU = "put both engines on GPUs of one kind"
_SAME_TORCH = "install the same torch on both"
_SAME_DRIVER = "install the same NVIDIA driver on both hosts"
_SAME_FLAGS = "set the same flag of torch in both engines"
_SAME_ENVIRONMENT = "start both engines with the same numerics environment"

#: By fact of the fingerprint: what makes it equal on two engines.
REMEDIES: Mapping[str, str] = {
    "architecture": _SAME_CPU,
    "attention": _SAME_FLAGS,
    "attention_reduction": _SAME_FLAGS,
    "blas": _SAME_FLAGS,
    "byte_order": _SAME_CPU,
    "caches": _SAME_CPU,
    "compute_capability": _SAME_GPU,
    "cpu_features": _SAME_CPU,
    "cpu_vendor": _SAME_CPU,
    "cublas": "install the same cuBLAS on both",
    "cuda": _SAME_TORCH,
    "cudnn": "install the same cuDNN on both",
    "cudnn_benchmark": _SAME_FLAGS,
    "cudnn_conv_fp32": _SAME_FLAGS,
    "cudnn_deterministic": _SAME_FLAGS,
    "cudnn_enabled": _SAME_FLAGS,
    "cudnn_rnn_fp32": _SAME_FLAGS,
    "default_dtype": _SAME_FLAGS,
    "deterministic": _SAME_FLAGS,
    "device": "put both engines on a CPU, or both on a GPU",
    "driver": _SAME_DRIVER,
    "driver_api": _SAME_DRIVER,
    "engine_code": "install the same release of the engine on both",
    "flush_denormal": _SAME_FLAGS,
    "gpu": _SAME_GPU,
    "instruction_set": "put both engines on CPUs of one kind, or start both with the same "
    "ATEN_CPU_CAPABILITY",
    "linalg": _SAME_FLAGS,
    "matmul_bf16_reduction": _SAME_FLAGS,
    "matmul_fp16_accumulation": _SAME_FLAGS,
    "matmul_fp16_reduction": _SAME_FLAGS,
    "matmul_fp32": _SAME_FLAGS,
    "matmul_precision": _SAME_FLAGS,
    "multiprocessors": "put both engines on whole GPUs, or on slices of one size",
    "numerics_environment": _SAME_ENVIRONMENT,
    "onednn": _SAME_FLAGS,
    "onednn_deterministic": _SAME_FLAGS,
    "onednn_fp32": _SAME_FLAGS,
    "presets": "start both engines with the same --models",
    "sessions_per_pass": "have both engines compute as many sessions in one pass",
    "threads": "start both engines with the same --threads",
    "torch": _SAME_TORCH,
    "torch_build": _SAME_TORCH,
    "triton": "install the same triton on both",
    "weights": "start both engines with the same weights: the same release and --weights-seed",
}


def remedies(here: Fingerprint, there: Fingerprint) -> tuple[str, ...]:
    """What makes the two equal, each remedy once; empty where they are equal."""
    names = sorted(here.facts.keys() | there.facts.keys())
    differing = [name for name in names if here.facts.get(name) != there.facts.get(name)]
    return tuple(dict.fromkeys(REMEDIES.get(name, f"make {name} equal") for name in differing))


def mismatch(here: Fingerprint, there: Fingerprint) -> str:
    """Which facts differ, what each is here and there, and how to make them equal."""
    differences = "; ".join(here.differences(there)) or "the hash"
    found = remedies(here, there)
    return f"{differences}. To make them equal: {'; '.join(found)}" if found else differences
