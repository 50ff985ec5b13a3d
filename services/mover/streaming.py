"""Streaming: tells the C library to copy large pieces past the caches.

A state is larger than any cache, so a copy that stores through them reads every line of the target
before it overwrites it, for nothing. glibc has a copy that does not, but takes it only from three
quarters of the last-level cache on: on large servers 100 MiB and more, far above a chunk. The
threshold is a tunable, which glibc reads when a process starts; so a process that wants another one
starts itself anew, in place and once.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping

_TUNABLES = "GLIBC_TUNABLES"
_THRESHOLD = "glibc.cpu.x86_non_temporal_threshold"
#: Copies from here on stream; smaller ones are probably read again soon.
STREAMED_BYTES = 1 << 20


def streaming_environment(environment: Mapping[str, str], machine: str) -> dict[str, str] | None:
    """The environment under which copies stream; None where this one is right or cannot be."""
    present = environment.get(_TUNABLES, "")
    if machine != "x86_64" or _THRESHOLD in present:
        return None
    wanted = f"{_THRESHOLD}={STREAMED_BYTES:#x}"
    return {**environment, _TUNABLES: f"{present}:{wanted}" if present else wanted}


def stream_copies() -> None:
    """Start this process anew with copies that stream, unless they do already."""
    environment = streaming_environment(os.environ, platform.machine())
    if environment is None or platform.libc_ver()[0] != "glibc":
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, sys.orig_argv, environment)  # noqa: S606
