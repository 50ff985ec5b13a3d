"""Arriving: what is closed while it is being made is closed then, and its slot let go first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from services.engine import arriving
from services.engine.parts import Parts
from tests.unit.engine.support import DEADLINE_S, Harness
from worldline.errors import DeadlineExceeded, InvariantBroken

Act = Callable[[], Awaitable[None]]


def in_mid_making(monkeypatch: pytest.MonkeyPatch, act: Act, *, fails: bool = False) -> None:
    """`act`, on the event loop, before the first part of the state is written."""
    made, loop = arriving.made, asyncio.get_running_loop()

    def held(*arguments: Any) -> Parts[None]:
        asyncio.run_coroutine_threadsafe(_run(act), loop).result(DEADLINE_S)
        if fails:
            raise InvariantBroken("a bug of the model")
        yield from made(*arguments)

    monkeypatch.setattr(arriving, "made", held)


async def _run(act: Act) -> None:
    await act()


@pytest.mark.parametrize("fails", [False, True])
async def test_one_that_is_closed_before_it_lives(
    source: Harness, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Whoever asks is answered when the call that makes it has ended, however it has."""
    closing: list[asyncio.Future[None]] = []

    async def close() -> None:
        closing.append(asyncio.ensure_future(source.engine.close("s1", 1)))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not closing[0].done()

    in_mid_making(monkeypatch, close, fails=fails)
    opening = asyncio.gather(source.open(), return_exceptions=True)
    async with asyncio.timeout(DEADLINE_S):
        await opening
        await closing[0]
    assert source.engine.sessions == {}
    assert len(source.slots.released) == int(fails), "what has lived is placement's to release"


async def test_one_that_does_not_come_is_said_to(
    source: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[DeadlineExceeded] = []

    async def close() -> None:
        monkeypatch.setattr(arriving, "BOUNDARY_TIMEOUT_S", 0.0)
        with pytest.raises(DeadlineExceeded) as caught:
            await source.engine.close("s1", 1)
        said.append(caught.value)

    in_mid_making(monkeypatch, close)
    await source.open()
    assert [one.field for one in said] == ["session_id"]
    assert set(source.engine.sessions) == {"s1"}
