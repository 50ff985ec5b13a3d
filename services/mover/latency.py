"""Latency: what keeps the interpreter from whoever a standing world waits for.

The data plane's thread and the event loop pass every completion on to each other. A thread that
waits for the interpreter asks for it only after the switch interval, 5 ms unless told otherwise:
more than a whole move between two GPUs takes. Much shorter intervals cost more than they save; on
two H200 a verified move took 5.5 ms at 100 us and 6.1 ms at 10 us.
"""

from __future__ import annotations

import gc
import sys

_SWITCH_S = 0.0001


def prefer_latency() -> None:
    """Make hand-overs quick, at the price of more of them."""
    sys.setswitchinterval(_SWITCH_S)


def keep_what_is_loaded() -> None:
    """Once everything is loaded: let the collector look at what comes after alone.

    A full collection goes through every module, table and class, for ten milliseconds and more,
    and may do so while a world stands still.
    """
    gc.collect()
    gc.freeze()
