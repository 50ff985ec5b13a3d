"""Elapsed: what is under way and for how long, on stderr, as long as there is no answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from rich.status import Status

from worldline.cli.output import err_console

#: What takes longer says so.
QUIET_S = 1.0
#: Where nobody watches a line change, one is written so often.
_REPEAT_S = 10.0


class Elapsed:
    """On a terminal one line that changes; elsewhere a line whenever it is time for one."""

    def __init__(self, what: str) -> None:
        self._status = Status("", console=err_console) if err_console.is_terminal else None
        self.begin(what)

    def begin(self, what: str) -> None:
        """Something else is under way from now on."""
        self._what, self._detail = what, ""
        self._since = time.monotonic()
        self._tell_after_s = QUIET_S
        if self._status is not None:
            self._status.update(what)

    def detail(self, text: str) -> None:
        """How far it is."""
        self._detail = text
        self.tick()

    def tick(self) -> None:
        """Some time has passed."""
        elapsed_s = time.monotonic() - self._since
        if elapsed_s < self._tell_after_s:
            return
        text = told(self._what, self._detail, elapsed_s)
        if self._status is not None:
            self._status.update(text)
        else:
            err_console.print(text, markup=False, highlight=False)
            self._tell_after_s = elapsed_s + _REPEAT_S

    def __enter__(self) -> Elapsed:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._status is not None:
            self._status.stop()


def told(what: str, detail: str, elapsed_s: float) -> str:
    """The line: what is under way, how far it is, for how long."""
    return f"{what} ... {f'{detail}, ' if detail else ''}{elapsed_s:.0f} s"


async def lines(stream: asyncio.StreamReader, shown: Elapsed) -> AsyncIterator[bytes]:
    """The lines of a stream as they come; in between `shown` is told that time passes."""
    reading = asyncio.ensure_future(stream.readline())
    try:
        while True:
            await asyncio.wait({reading}, timeout=QUIET_S)
            if not reading.done():
                shown.tick()
                continue
            line = reading.result()
            if not line:
                return
            reading = asyncio.ensure_future(stream.readline())
            yield line
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
