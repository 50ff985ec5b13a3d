"""Machine: what a measurement was made on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

_PACKAGES = ("worldline", "torch", "ucxx-cu13", "libucx-cu13", "awscrt", "grpcio", "numpy")


def machine() -> dict[str, str | int]:
    """Processor, memory and system."""
    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count() or 0,
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """Of the packages that decide a figure; those not installed are left out."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
