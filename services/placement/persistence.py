"""Persistence of a caller: asking again, without ever assuming what became of a call."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from services.placement.phases import Outcome
from worldline.errors import (
    CapacityExhausted,
    DeadlineExceeded,
    NotFound,
    TransferFailed,
    Unavailable,
    WorldlineError,
)

_log = structlog.get_logger(__name__)

T = TypeVar("T")

#: What the transport says when nothing is known of the call's effect.
UNKNOWN = (Unavailable, DeadlineExceeded, TransferFailed)
_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 1.0
#: How long a peer that is waited for may be silent beyond its lease: one that is merely starved
#: comes back, and what it does then is worth more than a move that is given up.
SILENT_S = 5.0
#: Why it was given up then.
PEER_SILENT = "PEER_SILENT"
#: How often it is looked at.
_LOOK_S = 0.25
#: A live peer that says no this often means it.
_REFUSALS_MAX = 3


async def ask_again(
    call: Callable[[], Awaitable[T]], *, attempts: int, gone: Callable[[], bool]
) -> T:
    """Make an idempotent call until its effect is known, `attempts` times at most.

    A peer whose lease has run out is not waited for much longer (`SILENT_S`).

    Raises:
        WorldlineError: the last one; any error that is a definite answer at once.
        Unavailable: PEER_SILENT, it is gone; the call was cancelled and may take effect yet.
    """
    backoff_s = _BACKOFF_FIRST_S
    for attempt in range(1, attempts + 1):
        try:
            return await _unless_gone(call, gone)
        except UNKNOWN:
            if attempt == attempts or gone():
                raise
        await asyncio.sleep(backoff_s)
        backoff_s = min(backoff_s * 2, _BACKOFF_MAX_S)
    raise AssertionError("unreachable: attempts is at least 1")


async def _unless_gone(call: Callable[[], Awaitable[T]], gone: Callable[[], bool]) -> T:
    """Make the call; give it up once the peer has been gone for `SILENT_S`."""
    loop = asyncio.get_running_loop()
    silent_since = math.inf
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer, silent_since
        now = loop.time()
        silent_since = min(silent_since, now) if gone() else math.inf
        if now >= silent_since + SILENT_S:
            limit.reschedule(now)
        else:
            timer = loop.call_later(_LOOK_S, look)

    timer = loop.call_later(_LOOK_S, look)
    try:
        async with asyncio.timeout(None) as limit:
            return await call()
    except TimeoutError:
        if not limit.expired():
            raise
        raise Unavailable(
            f"the peer has been silent for {SILENT_S:g} s longer than its lease",
            reason=PEER_SILENT,
        ) from None
    finally:
        timer.cancel()


async def fulfil(
    what: str,
    call: Callable[[], Awaitable[object]],
    *,
    gone: Callable[[], bool],
    within_s: float,
) -> Outcome:
    """Make an idempotent call until the peer acknowledged, is gone, refuses, or `within_s` is up.

    A peer that does not know the thing (`NotFound`) has nothing left to undo: GONE.
    """
    backoff_s = _BACKOFF_FIRST_S
    refusals = 0
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + within_s
    while True:
        try:
            await call()
            return Outcome.DONE
        except NotFound:
            return Outcome.GONE
        except (*UNKNOWN, CapacityExhausted) as error:
            if gone():
                return Outcome.GONE
            last: WorldlineError = error
        except WorldlineError as error:
            refusals += 1
            last = error
        if refusals >= _REFUSALS_MAX or loop.time() + backoff_s >= ends_at:
            _log.error("obligation.unmet", what=what, reason=last.reason, message=last.message)
            return Outcome.REFUSED
        await asyncio.sleep(backoff_s)
        backoff_s = min(backoff_s * 2, _BACKOFF_MAX_S)
