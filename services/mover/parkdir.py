"""Park directory: where a node keeps states in files, and how a restarted mover finds them again.

A copy is written in `ID.tmp` and gets its name by one rename when it is whole and on the disk, so
a directory without `.tmp` is a whole copy, and one with it is what a crash left of a copy that was
being written or removed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import structlog

from services.mover.crossing import scratch
from services.mover.parkfile import (
    BLOCK_BYTES,
    SIDECAR_BYTES_MAX,
    Sidecar,
    StateFile,
    decode_sidecar,
    encode_sidecar,
    io_errors,
)
from worldline.errors import IntegrityError, NotFound, Unavailable, WorldlineError
from worldline.park import park_id

_log = structlog.get_logger(__name__)

_STATE, _MANIFEST, _UNFINISHED = "state", "manifest", ".tmp"


@dataclass(frozen=True, slots=True)
class Found:
    """A copy found at the start, or why the one of that name cannot be used."""

    park_id: str
    size_bytes: int
    sidecar: Sidecar | None
    refused: WorldlineError | None = None


class ParkDirectory:
    """One node's parked files. Its calls block: they are for threads."""

    def __init__(self, path: Path, node_id: str) -> None:
        # A node of another name may share the directory: it never sees this one's.
        self.path = path / quote(node_id, safe="")
        self._node_id = node_id
        self.direct = False

    def open(self) -> list[Found]:
        """Make the directory, clear away what a crash left, and read what is there.

        Raises:
            Unavailable: the directory cannot be made or written; `field` is `park_dir`.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.direct = self._probe_direct()
            for leftover in self.path.glob(f"*{_UNFINISHED}"):
                _log.info("park.leftover_removed", path=str(leftover))
                shutil.rmtree(leftover)
            return list(self._found())
        except (OSError, WorldlineError) as error:
            raise Unavailable(
                f"cannot keep states in {self.path}: {error}",
                reason="PARK_DIR_UNUSABLE",
                field="park_dir",
            ) from error

    def create(self, name: str) -> StateFile:
        """The file that a new copy is written to; `finish` or `abandon` it.

        Raises:
            CapacityExhausted, TransferFailed: it cannot be made.
        """
        folder = self._unfinished(name)
        with io_errors(folder):
            folder.mkdir(mode=0o700)
        return StateFile(folder / _STATE, writable=True, direct=self.direct)

    def finish(self, sidecar: Sidecar) -> None:
        """Give a written copy its manifest and its name; durable when it returns.

        Raises:
            CapacityExhausted, TransferFailed: it is not there; `abandon` it.
            IntegrityError: the manifest could not be read again, and with it nobody the copy.
        """
        encoded = encode_sidecar(sidecar)
        decode_sidecar(encoded)
        folder, final = self._unfinished(sidecar.park_id), self.path / sidecar.park_id
        with io_errors(folder):
            _write_durably(folder / _MANIFEST, encoded)
            _sync_directory(folder)
            folder.rename(final)
            _sync_directory(self.path)

    def abandon(self, name: str) -> None:
        """Remove what was written of a copy that will not be finished; idempotent."""
        shutil.rmtree(self._unfinished(name), ignore_errors=True)

    def load(self, name: str) -> tuple[Sidecar, StateFile]:
        """A copy's sidecar, read and checked now, and its open file.

        Raises:
            NotFound: PARKED_UNKNOWN, there is none.
            IntegrityError: it is damaged, truncated or renamed; the reason says which.
            VersionSkew: written by another version.
        """
        folder = self.path / name
        if not folder.is_dir():
            raise NotFound(
                f"no parked copy {name} in {self.path}", reason="PARKED_UNKNOWN", field="park_id"
            )
        sidecar = decode_sidecar(_read_sidecar(folder / _MANIFEST))
        if (sidecar.park_id, sidecar.node_id) != (name, self._node_id):
            raise IntegrityError(
                f"{folder} holds copy {sidecar.park_id} of node {sidecar.node_id}: it was renamed",
                reason="PARKED_FILE_RENAMED",
            )
        file = self._open_state(folder / _STATE)
        if file.size_bytes != sidecar.file_bytes:
            size_bytes = file.size_bytes
            file.close()
            raise IntegrityError(
                f"{file.path} has {size_bytes} bytes of {sidecar.file_bytes}",
                reason="PARKED_FILE_TRUNCATED",
                granule=min(size_bytes, sidecar.file_bytes) >> 20,
            )
        return sidecar, file

    def drop(self, name: str) -> None:
        """Remove a copy; a crash in between leaves nothing that looks like one. Idempotent."""
        gone = self._unfinished(name)
        with suppress(OSError):
            (self.path / name).rename(gone)
            _sync_directory(self.path)
        shutil.rmtree(gone, ignore_errors=True)

    def _unfinished(self, name: str) -> Path:
        return self.path / f"{park_id(name)}{_UNFINISHED}"

    def _open_state(self, path: Path) -> StateFile:
        if not path.is_file():
            raise IntegrityError(f"{path} is not there", reason="PARKED_FILE_MISSING")
        return StateFile(path, writable=False, direct=self.direct)

    def _found(self) -> Iterator[Found]:
        for folder in sorted(self.path.iterdir()):
            try:
                name = park_id(folder.name)
            except WorldlineError:
                continue  # not ours
            size_bytes = sum(each.stat().st_size for each in folder.glob("*") if each.is_file())
            try:
                sidecar, file = self.load(name)
                file.close()
            except WorldlineError as error:
                _log.warning("park.refused", park_id=name, reason=error.reason, why=error.message)
                yield Found(name, size_bytes, None, error)
            else:
                yield Found(name, size_bytes, sidecar)

    def _probe_direct(self) -> bool:
        """Whether this file system takes direct I/O: asked by writing and reading a block."""
        probe = self.path / f"probe{_UNFINISHED}"
        shutil.rmtree(probe, ignore_errors=True)
        probe.mkdir(mode=0o700)
        file: StateFile | None = None
        try:
            file = StateFile(probe / _STATE, writable=True, direct=True)
            with scratch(BLOCK_BYTES) as block:
                file.write(0, block)
                file.read(0, block)
        except WorldlineError as error:
            _log.warning("park.no_direct_io", path=str(self.path), why=error.message)
            return False
        finally:
            if file is not None:
                file.close()
            shutil.rmtree(probe, ignore_errors=True)
        return True


def _read_sidecar(path: Path) -> bytes:
    try:
        if path.stat().st_size > SIDECAR_BYTES_MAX:
            raise IntegrityError(f"{path} is too large", reason="PARKED_FILE_DAMAGED")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise IntegrityError(f"{path} is not there", reason="PARKED_FILE_MISSING") from error
    except OSError as error:
        raise IntegrityError(
            f"{path} cannot be read: {error.strerror}", reason="PARKED_FILE_DAMAGED"
        ) from error


def _write_durably(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
