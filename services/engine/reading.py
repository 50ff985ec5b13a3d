"""Reading: a look at a mapped slot from a thread that outlives whoever asked for it, if it must."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def to_the_end(function: Callable[[], T]) -> T:
    """The function's result, from a thread; also where nobody waits for it any more it is over
    when this returns, for it reads memory that is unmapped or written after.
    """
    reading = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(reading)
    finally:
        await asyncio.wait({reading})
