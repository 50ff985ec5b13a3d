"""Facts: what a figure depends on that is not in the code: processor, pages, kernel, GPUs."""

from __future__ import annotations

import mmap
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from worldline.cli import machine as shared

_PEERS = (
    "nixl-cu13",
    "mooncake-transfer-engine-non-cuda",
    "safetensors",
    "torchft",
    "cuda-core",
)
_ROOT = Path(__file__).parents[1]


def machine() -> dict[str, Any]:
    """The machine and the settings of its kernel that decide a figure."""
    return {
        **shared.machine(),
        "kernel": platform.release(),
        "page_bytes": mmap.PAGESIZE,
        "huge_pages": _huge_pages(),
        "transparent_huge_pages": _chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        "transparent_huge_pages_shmem": _chosen(
            "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
        ),
        "tcp_congestion_control": _text("/proc/sys/net/ipv4/tcp_congestion_control"),
        "ucx_variables": {k: v for k, v in sorted(os.environ.items()) if k.startswith("UCX_")},
        "gpus": gpus(),
    }


def versions() -> dict[str, str]:
    """Of our packages and of the peers; those not installed are left out."""
    found = shared.versions()
    for name in _PEERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> tuple[str, bool]:
    """The commit of this tree, and whether tracked files differ from it; empty without git."""
    head = _git("rev-parse", "HEAD")
    return head, bool(_git("status", "--porcelain", "--untracked-files=no")) if head else True


def gpus() -> dict[str, Any]:
    """Names of the GPUs and the driver's version; no names and the reason where there are none."""
    try:
        import pynvml
    except ImportError as error:
        return {"names": [], "reason": str(error)}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"names": [], "reason": str(error)}
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        return {
            "names": [pynvml.nvmlDeviceGetName(handle) for handle in handles],
            "driver": pynvml.nvmlSystemGetDriverVersion(),
        }
    finally:
        pynvml.nvmlShutdown()


def free_huge_bytes() -> int:
    """Reserved large pages that nobody has."""
    found = _huge_pages()
    return found.get("free", 0) * found.get("bytes", 0)


def _huge_pages() -> dict[str, int]:
    """Counts and size in bytes, as /proc/meminfo says."""
    names = {"HugePages_Total": "total", "HugePages_Free": "free", "Hugepagesize": "bytes"}
    found = {}
    for line in _text("/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name in names:
            number = int(value.split()[0])
            found[names[name]] = number * 1024 if "kB" in value else number
    return found


def _chosen(path: str) -> str:
    """The bracketed word of a kernel setting."""
    words = [word.strip("[]") for word in _text(path).split() if word.startswith("[")]
    return words[0] if words else ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(
            ["git", *arguments],  # noqa: S607
            cwd=_ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
