"""Small shared memory: a command line that runs a command under a /dev/shm of its own."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence


def under_shm_of(size: str, command: Sequence[str]) -> list[str]:
    """The command line; the process becomes the command. `size` as tmpfs(5) takes it: 64m."""
    mount = f"mount -t tmpfs -o size={size} tmpfs /dev/shm"
    script = f'mount --make-rprivate / && {mount} && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, "sh", *command]


@functools.cache
def why_not() -> str | None:
    """Why that cannot be done here; None where it can."""
    if shutil.which("unshare") is None:
        return "unshare not found; install util-linux"
    if os.geteuid() != 0:
        return "a /dev/shm of one's own needs root; run the tests as root"
    done = subprocess.run(under_shm_of("1m", ["true"]), capture_output=True, text=True, timeout=60)
    return f"{done.stderr.strip()}; needs CAP_SYS_ADMIN" if done.returncode else None
