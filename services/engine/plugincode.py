"""Plug-in code: one name for the code of a package, whatever it is made of.

A plug-in decides frames as the built-in models do, so its code belongs in the configuration
fingerprint. What counts is content, file by file: sources, compiled extensions, kernels, data that
lies beside them. A wheel and a checkout of the same files are equal.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

from worldline.errors import InvalidInput

#: Written by Python itself, from sources that are there too.
_CACHE_DIR = "__pycache__"
_CACHE_SUFFIX = ".pyc"
_CHUNK_BYTES = 1 << 20


def packages_digest(names: Iterable[str], field: str = "models") -> str:
    """SHA-256 (hex) over the files of these top-level packages or modules, names and contents.

    Raises:
        InvalidInput: one cannot be imported, or has no files.
    """
    digest = hashlib.sha256(b"worldline.plugin\0")
    for name in sorted({name.partition(".")[0] for name in names}):
        digest.update(f"{name}\0".encode())
        for relative, path in _files(name, field):
            digest.update(f"{relative}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
    return digest.hexdigest()


def _files(name: str, field: str) -> list[tuple[str, Path]]:
    """The files of a package with their names in it, in order."""
    try:
        module = sys.modules.get(name) or import_module(name)
    except ImportError as error:
        raise InvalidInput(
            f"package {name}, whose code decides frames, cannot be imported: {error}",
            reason="MODEL_CODE_UNKNOWN",
            field=field,
        ) from error
    roots = [Path(root) for root in getattr(module, "__path__", ())]
    if roots:
        found = sorted(found for root in roots for found in _below(root))
    else:
        path = Path(getattr(module, "__file__", None) or "")
        found = [(path.name, path)] if path.is_file() else []
    if not found:
        raise InvalidInput(
            f"package {name} has no files: its code cannot be named in the fingerprint; install "
            "it as a directory or a module, not in an archive",
            reason="MODEL_CODE_UNKNOWN",
            field=field,
        )
    return found


def _below(root: Path) -> Iterator[tuple[str, Path]]:
    """Every file but caches and hidden ones. Links to directories are not followed."""
    for where, directories, names in os.walk(root):
        directories[:] = sorted(
            name for name in directories if name != _CACHE_DIR and not name.startswith(".")
        )
        for name in names:
            path = Path(where) / name
            if name.startswith(".") or name.endswith(_CACHE_SUFFIX) or not path.is_file():
                continue
            yield path.relative_to(root).as_posix(), path
