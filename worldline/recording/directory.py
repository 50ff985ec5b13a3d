"""Directory: a run on disk, `run.json` and `blocks.jsonl`.

The header is written whole or not at all. Each block is one line, handed to the kernel at once: a
process that dies leaves at most the beginning of a line, which a reader drops and says so.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from worldline.errors import InvalidInput, NotFound, VersionSkew, WorldlineError
from worldline.recording.codec import (
    block_from_json,
    block_to_json,
    header_from_json,
    header_to_json,
)
from worldline.recording.run import Run, RunBlock, RunHeader, check_next

HEADER_NAME = "run.json"
LOG_NAME = "blocks.jsonl"


class RunWriter:
    """Writes one run into a directory of its own. A context manager; what was written stays."""

    def __init__(self, path: Path, header: RunHeader) -> None:
        """Make the directory and write the header.

        Raises:
            InvalidInput: something is there already, or nothing can be written there; `field` is
                `out`.
        """
        self.path = path
        self._header = header
        self._count = 0
        check_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            _write_whole(path / HEADER_NAME, header_to_json(header) + "\n")
            self._log = os.open(
                path / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666
            )
        except OSError as error:
            raise InvalidInput(f"{path}: {error.strerror}", field="out") from None

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def append(self, block: RunBlock) -> None:
        """The next block.

        Raises:
            InvalidInput: it is not the next one, or not of this state.
            OSError: the disk is full.
        """
        check_next(self._header, self._count, block)
        line = memoryview(block_to_json(block).encode() + b"\n")
        while line:
            line = line[os.write(self._log, line) :]
        self._count += 1

    def close(self) -> None:
        """See that it is on the disk. Idempotent."""
        log, self._log = self._log, -1
        if log >= 0:
            os.fsync(log)
            os.close(log)


def check_free(path: Path) -> None:
    """Whether a run can be written there.

    Raises:
        InvalidInput: something is there already; `field` is `out`.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise InvalidInput(f"{path} is there already: name another directory", field="out")


def read_run(path: Path) -> Run:
    """A run as far as it was written.

    Raises:
        NotFound: there is no run.
        InvalidInput: its header or a finished line of its log does not parse; the message begins
            with file and line.
        VersionSkew: its state's layout is of another version.
    """
    header_path, log_path = path / HEADER_NAME, path / LOG_NAME
    try:
        header_bytes = header_path.read_bytes()
        log = log_path.read_bytes() if log_path.exists() else b""
    except OSError as error:
        raise NotFound(
            f"no run at {path}: {error.filename}: {error.strerror}; name the directory that "
            "`worldline record --out` wrote",
            reason="RUN_UNKNOWN",
            field="run",
        ) from None
    try:
        header = header_from_json(_text(header_bytes))
    except (InvalidInput, VersionSkew) as error:
        raise _located(error, str(header_path)) from None
    *lines, torn = log.split(b"\n")
    blocks = []
    for place, line in enumerate(lines):
        try:
            block = block_from_json(_text(line))
            check_next(header, place, block)
        except InvalidInput as error:
            raise _located(error, f"{log_path}:{place + 1}") from None
        blocks.append(block)
    return Run(header, tuple(blocks), len(torn))


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"not UTF-8 at byte {error.start}", reason="NOT_JSON") from None


def _located(error: InvalidInput | VersionSkew, where: str) -> WorldlineError:
    return type(error)(
        f"{where}: {error.message}", reason=error.reason, field=error.field, leaf=error.leaf
    )


def _write_whole(path: Path, text: str) -> None:
    """The file with all of its text, or no file of that name."""
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
