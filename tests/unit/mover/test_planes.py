"""Planes: a worker is run by a thread or by the loop, sleeps when nothing moves, and can fail."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from services.mover.transport.loopplane import LoopPlane
from services.mover.transport.plane import Plane, Work
from services.mover.transport.threadplane import ThreadPlane
from tests.oracles import until

Make = Callable[[Work], Plane]


class Counted:
    """Work that moves as often as it was told to, and counts."""

    def __init__(self) -> None:
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.to_move = 0
        self.turns = 0
        self.armed = 0
        self.breaks = False
        self.cause: Exception | None = None
        self.threads: set[int] = set()

    def descriptor(self) -> int:
        return self.wake

    def arm(self) -> bool:
        try:
            os.eventfd_read(self.wake)
        except BlockingIOError:
            self.armed += 1
            return True
        return False

    def turn(self) -> bool:
        self.turns += 1
        self.threads.add(threading.get_ident())
        if self.breaks:
            raise RuntimeError("broken")
        self.to_move -= 1
        return self.to_move >= 0

    def is_busy(self) -> bool:
        return self.to_move > 0

    def fail(self, cause: Exception) -> None:
        self.cause = cause


@pytest.fixture
def work() -> Counted:
    return Counted()


@pytest.fixture(params=[ThreadPlane, LoopPlane])
async def plane(request: pytest.FixtureRequest, work: Counted) -> AsyncIterator[Plane]:
    make: Make = request.param
    made = make(work)
    made.start()
    yield made
    assert await made.stop(5.0)
    os.close(work.wake)


async def asleep(work: Counted) -> None:
    """Until it has armed itself after all that it was told to move."""

    async def complaints() -> list[str]:
        return [] if work.armed and work.to_move < 0 else [f"{work.to_move} to move"]

    await until(complaints)


async def test_actions_run_in_order_where_the_work_runs(plane: Plane, work: Counted) -> None:
    seen: list[tuple[int, int]] = []
    for number in range(20):
        plane.submit(lambda number=number: seen.append((number, threading.get_ident())))  # type: ignore[misc]
    await until_true(lambda: len(seen) == 20 and work.turns > 0)
    assert [number for number, _ in seen] == list(range(20))
    assert {thread for _, thread in seen} == work.threads


async def test_an_action_of_another_thread_is_run_there_too(plane: Plane, work: Counted) -> None:
    await asleep(work)
    ran: list[int] = []
    await asyncio.to_thread(plane.submit, lambda: ran.append(threading.get_ident()))
    await until_true(lambda: bool(ran))
    assert set(ran) == work.threads


async def test_an_action_that_raises_harms_nobody(plane: Plane, work: Counted) -> None:
    ran: list[str] = []

    def wrong() -> None:
        raise ValueError("an action")

    plane.submit(wrong)
    plane.submit(lambda: ran.append("after"))
    await until_true(lambda: ran == ["after"])
    assert work.cause is None


async def test_it_sleeps_when_nothing_moves_and_is_woken(plane: Plane, work: Counted) -> None:
    await asleep(work)
    turns, work.to_move, work.armed = work.turns, 7, 0
    os.eventfd_write(work.wake, 1)
    await asleep(work)
    assert work.turns >= turns + 8


async def test_work_that_breaks_is_told_and_actions_go_on(plane: Plane, work: Counted) -> None:
    await asleep(work)
    work.breaks = True
    ran: list[str] = []
    plane.submit(lambda: ran.append("before"))
    await until_true(lambda: work.cause is not None)
    turns = work.turns
    plane.submit(lambda: ran.append("after"))
    await until_true(lambda: ran == ["before", "after"])
    assert str(work.cause) == "broken"
    assert work.turns == turns


async def test_on_the_loop_an_action_submitted_in_a_turn_waits_for_its_end(work: Counted) -> None:
    """A request posted by what a turn reports must not change what the turn goes through."""
    plane, order = LoopPlane(work), list[str]()
    turn = work.turn

    def posting() -> bool:
        if not order:
            plane.submit(lambda: order.append("action"))
            order.append("end of the turn")
        return turn()

    work.turn = posting  # type: ignore[method-assign]
    plane.start()
    await until_true(lambda: len(order) == 2)
    assert order == ["end of the turn", "action"]
    assert await plane.stop(5.0)
    os.close(work.wake)


async def test_actions_submitted_in_the_turn_that_breaks_are_run(
    plane: Plane, work: Counted
) -> None:
    """Nobody may come after them: what the failed work has not refused would hang."""
    await asleep(work)
    ran: list[str] = []

    def breaking() -> bool:
        plane.submit(lambda: ran.append("action"))
        raise RuntimeError("broken")

    work.turn = breaking  # type: ignore[method-assign]
    os.eventfd_write(work.wake, 1)
    await until_true(lambda: ran == ["action"])
    assert str(work.cause) == "broken"


async def until_true(holds: Callable[[], bool]) -> None:
    async def complaints() -> list[str]:
        return [] if holds() else ["not yet"]

    await until(complaints)
