"""Key: the one that tickets are signed with, from a file or made at start."""

from __future__ import annotations

import stat
from pathlib import Path

import structlog

from worldline.errors import InvalidInput
from worldline.ticket import SEED_BYTES, TicketSigner

_log = structlog.get_logger(__name__)


def load_signer(key_file: Path | None) -> TicketSigner:
    """The signer of a key file, or of a fresh key where there is none.

    With a fresh key every start of admission invalidates the tickets of the one before, which is
    safe: holds do not outlive the process either.

    Raises:
        InvalidInput: the file cannot be read, or is not 32 raw bytes; `field` is `key_file`.
    """
    if key_file is None:
        return TicketSigner.generate()
    try:
        mode = key_file.stat().st_mode
        with key_file.open("rb") as stream:
            seed = stream.read(SEED_BYTES + 1)
    except OSError as error:
        raise InvalidInput(
            f"the ticket key {key_file} cannot be read: {error.strerror}", field="key_file"
        ) from error
    if len(seed) != SEED_BYTES:
        found = f"{len(seed)}" if len(seed) < SEED_BYTES else f"more than {SEED_BYTES}"
        raise InvalidInput(
            f"the ticket key {key_file} must be {SEED_BYTES} raw bytes, found {found}; make one "
            f"with: head -c {SEED_BYTES} /dev/urandom > {key_file}",
            field="key_file",
        )
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        _log.warning("key_file.readable_by_others", key_file=str(key_file), mode=oct(mode & 0o777))
    return TicketSigner.from_seed(seed)
