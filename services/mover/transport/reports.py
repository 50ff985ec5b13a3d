"""Reports: calls that the plane owes the event loop, handed over in one wake-up.

Each wake-up costs a thread the interpreter for a moment. While it has other bytes to move
anyway, it therefore lets a few milliseconds' reports gather: the window has work for as long.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

_Call = tuple[Callable[..., None], tuple[Any, ...]]
#: How long a report waits for others at most.
_GATHER_S = 0.004


class Reports:
    """`add` and `flush` are for the plane; the calls run on the loop's, in order.

    Without a wake-up where that is the plane's own; made there.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread_id = threading.get_ident()
        self._owed: list[_Call] = []
        self._since = 0.0

    def add(self, function: Callable[..., None], *arguments: Any) -> None:
        """Owe a call."""
        if not self._owed:
            self._since = monotonic()
        self._owed.append((function, arguments))

    def flush(self, *, gather: bool = False) -> None:
        """Hand over what is owed; with `gather` only what has waited long enough."""
        if self._owed and not (gather and monotonic() - self._since < _GATHER_S):
            owed, self._owed = self._owed, []
            if threading.get_ident() == self._thread_id:
                _run(owed)
                return
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
                self._loop.call_soon_threadsafe(_run, owed)


def _run(owed: list[_Call]) -> None:
    for function, arguments in owed:
        function(*arguments)
