"""Reports and lines: what operations of a plane share."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from services.mover.transport import reports
from services.mover.transport.line import Line
from services.mover.transport.reports import Reports


async def test_reports_come_in_order_and_in_one_turn() -> None:
    loop, heard = asyncio.get_running_loop(), list[int]()
    owed = Reports(loop)
    owed.add(heard.append, 1)
    owed.add(heard.append, 2)
    assert heard == []
    owed.flush()
    await asyncio.sleep(0)
    assert heard == [1, 2]


async def test_reports_gather_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, clock = list[int](), [100.0]
    monkeypatch.setattr(reports, "monotonic", lambda: clock[0])
    owed = Reports(asyncio.get_running_loop())
    owed.add(heard.append, 1)
    clock[0] += 0.0039
    owed.add(heard.append, 2)  # waits no longer for having come later
    owed.flush(gather=True)
    await asyncio.sleep(0)
    assert heard == []
    clock[0] += 0.0002
    owed.flush(gather=True)
    await asyncio.sleep(0)
    assert heard == [1, 2]


def turns(waiting: Generator[None, None, None]) -> bool:
    """Whether it is this one's turn."""
    return next(waiting, "turn") == "turn"


def test_a_line_goes_in_order_whoever_gives_up() -> None:
    line = Line()
    first, second, third = "abc"
    waits = {one: line.wait(one) for one in (first, second, third)}
    assert turns(waits[first])
    assert not turns(waits[second])
    assert not turns(waits[third])
    line.leave(second)
    line.leave(second)
    assert not turns(waits[third])
    line.leave(first)
    assert turns(waits[third])
