"""Threads: work that takes the trace it belongs to along to another thread.

`asyncio.to_thread` does so by itself; `run_in_executor` and everything else that hands a function
to a thread does not.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def carried(work: Callable[[], T]) -> Callable[[], T]:
    """`work` in the context of here and now, wherever it runs; to be called once."""
    context = contextvars.copy_context()
    return lambda: context.run(work)
