"""Services whose monotonic clocks are days apart, as hosts' are: each in a time namespace.

Run in place of a service through its entry. `CLOCK_MONOTONIC` counts from boot, so that two hosts'
readings have nothing to do with each other; on one machine they are one clock, and a comparison
across processes that is wrong everywhere else goes unnoticed (time_namespaces(7)).
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable

from services.admission.main import main as admission_main
from services.engine.main import main as engine_main
from services.mover.launch import main as mover_main

_CLONE_NEWTIME = 0x80
_INSIDE = "WORLDLINE_TEST_SKEWED"
#: Seconds ahead of the machine's clock.
ADMISSION_S, MOVER_S, ENGINE_S = 400_000, 7_000_000, 90_000


def enter(ahead_s: int) -> None:
    """Go on as the same process in a new time namespace.

    Raises:
        OSError: not allowed, or the kernel has none.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(_CLONE_NEWTIME) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")
    with open("/proc/self/timens_offsets", "w") as offsets:
        offsets.write(f"monotonic {ahead_s} 0\n")
    # The namespace is entered with the next exec.
    os.environ[_INSIDE] = "1"
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - itself, again


def why_not() -> str | None:
    """Why processes cannot be skewed here; None where they can."""
    code = "import tests.e2e.skewed as s, time; s.enter(1000) if not s.inside() else print('in')"
    before_s = time.monotonic()
    probe = f"{code}; print(time.monotonic())"
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        return f"no time namespace: {done.stderr.strip().splitlines()[-1]} (root is needed)"
    if float(done.stdout.split()[-1]) < before_s + 1_000:
        return "this kernel does not enter a time namespace with an exec"
    return None


def inside() -> bool:
    """Whether this process is skewed already."""
    return _INSIDE in os.environ


def _skewed(main: Callable[[], None], ahead_s: int) -> None:
    if not inside():
        enter(ahead_s)
    main()


def admission() -> None:
    """Admission."""
    _skewed(admission_main, ADMISSION_S)


def mover() -> None:
    """A mover."""
    _skewed(mover_main, MOVER_S)


def engine() -> None:
    """An engine."""
    _skewed(engine_main, ENGINE_S)
