"""Trim: what an image's environment can do without, and whether it is of the wanted variant.

`python3 trim.py ENVIRONMENT --variant cpu|cuda`, in the image's build; standard library only.

Goes: tests, headers, static archives, programs that nothing here runs, and second copies of shared
libraries (wheels cannot hold symbolic links). Stays: everything that an import or a dlopen can
reach. Bytecode is compiled for what a service or a client loads: all of it would be a fifth of the
image, none of it seconds at every start.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

#: Below site-packages. torch's headers are for building extensions, its programs are its tests.
_UNUSED = (
    "torch/include",
    "torch/test",
    "torch/share",
    "torch/bin/protoc*",
    "torch/bin/test_*",
    "torch/bin/*StoreTest",
    "torch/bin/*.ptl",
    "torch/bin/*.pt",
    "torch/bin/upgrader_models",
    "libucx/include",
    "libucx/bin",
    "libucx/lib/ucx/libucx_perftest*",
    "librmm/include",
    "libucxx/include",
    "rapids_logger/include",
)
_UNUSED_ANYWHERE = ("tests", "*.a", "*.la")
#: What a start imports.
_LOADED = """
import asyncio, google.rpc, grpc.aio, grpc_health.v1.health, grpc_reflection.v1alpha.reflection
import awscrt.checksums, asyncio_throttle, cryptography.hazmat.primitives.asymmetric.ed25519
import grpc_status.rpc_status, numpy, opentelemetry.sdk.trace.export, PIL.Image, psutil
import opentelemetry.exporter.otlp.proto.grpc.trace_exporter, pydantic_settings, rich.progress
import rich.table, structlog, torch, torch.nn.functional, typer, ucxx
"""


def main() -> None:
    """Check, trim, compile; say what it saved."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environment", type=Path)
    parser.add_argument("--variant", choices=("cpu", "cuda"), required=True)
    given = parser.parse_args()
    packages = next(given.environment.glob("lib/python3*/site-packages"))
    check_variant(packages, given.variant)
    before_bytes = size_bytes(packages)
    remove_unused(packages)
    link_copies(packages)
    saved_bytes = before_bytes - size_bytes(packages)
    python = given.environment / "bin" / "python3"
    subprocess.run([python, "-c", _LOADED], check=True)  # noqa: S603 - and so it still imports
    sys.stdout.write(f"trimmed {saved_bytes / 1e6:.0f} MB of {before_bytes / 1e6:.0f} MB\n")


def check_variant(packages: Path, variant: str) -> None:
    """Exit, with the way out, where torch was built for something else than `variant`."""
    version = (packages / "torch" / "version.py").read_text()
    built_for = "cpu" if "cuda: Optional[str] = None" in version else "cuda"
    if built_for == variant:
        return
    hint = (
        "let pip find PyTorch's CPU build: put its wheel into wheelhouse/cpu, or give "
        "`make wheelhouse` the index of CPU builds in PIP_EXTRA_INDEX_URL"
        if variant == "cpu"
        else "put PyTorch's CUDA build into wheelhouse/cuda, without a local version (+cpu)"
    )
    sys.exit(f"trim: torch here is the {built_for} build, the image is to be {variant}: {hint}")


def remove_unused(packages: Path) -> None:
    """Remove what nothing loads."""
    found = [path for pattern in _UNUSED for path in packages.glob(pattern)]
    found += [path for pattern in _UNUSED_ANYWHERE for path in packages.rglob(pattern)]
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def link_copies(packages: Path) -> None:
    """Make each further copy of a shared library in one directory a symbolic link to the first."""
    first: dict[tuple[Path, str], Path] = {}
    libraries = [path for path in packages.rglob("*.so*") if path.is_file()]
    # The longest name is the file, as in `libucp.so.0.0.0`; the others lead to it.
    for path in sorted(libraries, key=lambda each: (-len(each.name), each)):
        if path.is_symlink():
            continue
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        kept = first.setdefault((path.parent, digest), path)
        if kept != path:
            path.unlink()
            path.symlink_to(kept.name)


def size_bytes(directory: Path) -> int:
    """Of all files below; links count nothing."""
    files = (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)


if __name__ == "__main__":
    main()
