"""Faults of in-test peers: what goes wrong at which method, and what was called; and the state
that all of them have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from worldline.state.layout import flat_layout
from worldline.state.manifest import CRC64NVME, Digests

LAYOUT = flat_layout("kv", 2048)
DIGESTS = Digests(CRC64NVME, 1024, (11, 12), (13,), 14)
FLIPPED = Digests(CRC64NVME, 1024, (11, 99), (98,), 97)


@dataclass
class Faults:
    """What goes wrong, by method; and what was called, in order, over all peers."""

    calls: list[str] = field(default_factory=list)
    errors: dict[str, list[Exception]] = field(default_factory=dict)
    #: Errors after the work was done: the reply is lost.
    lost_replies: dict[str, list[Exception]] = field(default_factory=dict)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    reached: dict[str, asyncio.Event] = field(default_factory=dict)

    def fail(self, method: str, *errors: Exception) -> None:
        self.errors.setdefault(method, []).extend(errors)

    def lose_reply(self, method: str, *errors: Exception) -> None:
        self.lost_replies.setdefault(method, []).extend(errors)

    def hold(self, method: str) -> asyncio.Event:
        """The method waits until the event that is returned is set."""
        self.reached[method] = asyncio.Event()
        self.gates[method] = asyncio.Event()
        return self.gates[method]

    async def reach(self, method: str) -> None:
        async with asyncio.timeout(60):
            await self.reached[method].wait()

    async def around(self, method: str, work: Callable[[], Any]) -> Any:
        self.calls.append(method)
        if method in self.gates:
            self.reached[method].set()
            await self.gates[method].wait()
        if self.errors.get(method):
            raise self.errors[method].pop(0)
        result = work()
        if self.lost_replies.get(method):
            raise self.lost_replies[method].pop(0)
        return result
