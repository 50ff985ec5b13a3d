"""UCX worker: a turn says whether anything moved, and whoever runs it sleeps by that."""

from __future__ import annotations

import asyncio
from typing import Any

from services.mover.transport.base import Request
from services.mover.transport.ucxworker import UcxWorker
from worldline.errors import TransferFailed


class Failing:
    """An operation whose next step fails; somebody may have waited for it to leave the floor."""

    def __init__(self) -> None:
        self.request = Request("receive", 1, 8)
        self.endpoint = self

    def advance(self) -> bool:
        raise TransferFailed("its reader is broken")

    def end(self, request: Request, error: TransferFailed | None) -> None:
        request.end(error)


async def test_a_turn_in_which_a_request_fails_has_moved_something() -> None:
    """Else the plane would sleep, and those that may get on now would wait for its longest."""
    worker, failing = UcxWorker({}, asyncio.get_running_loop()), Failing()
    while worker.turn():
        pass
    operations: list[Any] = worker._operations
    operations.append(failing)
    assert worker.turn()
    assert failing.request.error is not None
    assert not worker.turn()
