"""Chores: run part by part, by a loop or without one; who stops waiting stops them."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import AsyncIterator

import pytest

from services.engine.chores import Chores
from services.engine.parts import Parts, at_once
from services.engine.signal import Signal
from services.engine.worker import Worker, _Job
from worldline.errors import Unavailable

DEADLINE_S = 60.0


@pytest.fixture
async def chores() -> AsyncIterator[Chores]:
    worker = Worker(1)
    yield Chores(worker)
    worker.close()


class Counted:
    """A chore of some parts; says in which thread they ran, and whether it ended."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.threads: list[int] = []
        self.is_over = threading.Event()
        self.begun = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def parts(self) -> Parts[int]:
        try:
            for number in range(self.count):
                self.begun.set()
                assert self.go.wait(DEADLINE_S)
                self.threads.append(threading.get_ident())
                if number < self.count - 1:
                    yield
            return self.count
        finally:
            self.is_over.set()


async def test_without_a_loop_parts_follow_each_other_in_the_workers_thread(
    chores: Chores,
) -> None:
    one, other = Counted(3), Counted(2)
    async with asyncio.timeout(DEADLINE_S):
        assert await asyncio.gather(chores.run(one.parts()), chores.run(other.parts())) == [3, 2]
    assert {*one.threads, *other.threads} == {await chores.worker.run(threading.get_ident)}
    assert chores.claims(time.monotonic()) == []


async def test_with_a_loop_a_part_runs_when_its_claim_was_chosen(chores: Chores) -> None:
    counted, wake = Counted(2), Signal()
    with chores.attended(wake):
        token = wake.token()
        waiting = asyncio.ensure_future(chores.run(counted.parts()))
        await asyncio.wait_for(token.wait(), DEADLINE_S)
        (claim,) = chores.claims(time.monotonic())
        await chores.advance(claim.session_id)
        assert len(counted.threads) == 1
        assert not waiting.done()
        (again,) = chores.claims(time.monotonic())
        assert again.session_id == claim.session_id
        assert again.quantum_s > 0
        await chores.advance(claim.session_id)
        assert await asyncio.wait_for(waiting, DEADLINE_S) == 2


async def test_what_a_loop_leaves_behind_is_ended_without_it(chores: Chores) -> None:
    counted, wake = Counted(4), Signal()
    with chores.attended(wake):
        token = wake.token()
        waiting = asyncio.ensure_future(chores.run(counted.parts()))
        await asyncio.wait_for(token.wait(), DEADLINE_S)
    assert await asyncio.wait_for(waiting, DEADLINE_S) == 4


async def test_who_stops_waiting_ends_it_after_the_part_that_runs(chores: Chores) -> None:
    counted = Counted(5)
    counted.go.clear()
    waiting = asyncio.ensure_future(chores.run(counted.parts()))
    assert await asyncio.to_thread(counted.begun.wait, DEADLINE_S)
    waiting.cancel()
    await asyncio.sleep(0)
    assert not counted.is_over.is_set()
    counted.go.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, DEADLINE_S)
    assert len(counted.threads) == 1
    assert counted.is_over.is_set()
    assert chores.claims(time.monotonic()) == []


class View:
    """Stands for a view of a slot."""


async def test_an_error_keeps_nothing_that_its_part_held(chores: Chores) -> None:
    gone = threading.Event()

    def fails() -> None:
        view = View()
        weakref.finalize(view, gone.set)
        try:
            raise KeyError(view.__class__.__name__)
        except KeyError as error:
            raise ZeroDivisionError("no") from error

    with pytest.raises(ZeroDivisionError):
        await chores.run(at_once(fails))
    assert gone.is_set()


async def test_a_worker_that_is_closed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, counted = Worker(1), Counted(2)
    chores, begun, dropped, drop = Chores(worker), threading.Event(), threading.Event(), _Job.drop

    def noticed(job: _Job[object]) -> None:
        drop(job)
        dropped.set()

    def work() -> bool:
        begun.set()
        return dropped.wait(DEADLINE_S)

    monkeypatch.setattr(_Job, "drop", noticed)
    blocking = worker.submit(work)
    assert await asyncio.to_thread(begun.wait, DEADLINE_S)
    waiting = asyncio.ensure_future(chores.run(counted.parts()))
    await asyncio.sleep(0)  # its first part waits behind what runs
    assert chores.claims(time.monotonic()) == []
    worker.close()
    with pytest.raises(Unavailable):
        await asyncio.wait_for(waiting, DEADLINE_S)
    assert await blocking
    assert counted.threads == []
