"""Worker: one thread, in order; whoever stops waiting stops nothing, and nothing is kept."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial
from typing import TypeVar

import pytest

from services.engine.worker import Worker, _Job

DEADLINE_S = 60.0
T = TypeVar("T")


@pytest.fixture
def worker() -> Iterator[Worker]:
    one = Worker(threads=1)
    yield one
    one.close()


async def within(awaited: asyncio.Future[T]) -> T:
    async with asyncio.timeout(DEADLINE_S):
        return await awaited


async def test_results_come_in_order_from_one_thread(worker: Worker) -> None:
    order: list[int] = []
    passing = [worker.submit(partial(order.append, number)) for number in range(50)]
    for one in passing:
        await within(one)
    assert order == list(range(50))
    threads = {await worker.run(threading.get_ident) for _ in range(3)}
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_an_error_is_the_waiters_and_the_worker_goes_on(worker: Worker) -> None:
    def fails() -> None:
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError):
        await worker.run(fails)

    def stops() -> None:
        raise StopIteration(7)

    with pytest.raises(RuntimeError, match=r"StopIteration\(7\)"):
        await within(worker.submit(stops))
    assert await worker.run(lambda: 3) == 3


async def test_a_wait_that_is_cancelled_does_not_stop_what_runs(worker: Worker) -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert may_end.wait(DEADLINE_S)
        ended.set()

    waiting = asyncio.ensure_future(worker.run(work))
    await asyncio.to_thread(begun.wait, DEADLINE_S)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    may_end.set()
    await worker.run(lambda: None)
    assert ended.is_set()


async def test_what_is_cancelled_before_it_begins_is_not_begun(worker: Worker) -> None:
    may_end, ran = threading.Event(), list[str]()
    first = worker.submit(lambda: may_end.wait(DEADLINE_S))
    second = worker.submit(lambda: ran.append("second"))
    second.cancel()
    may_end.set()
    await within(first)
    await worker.run(lambda: ran.append("third"))
    assert ran == ["third"]


async def test_closing_finishes_what_runs_and_drops_what_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, begun, dropped = Worker(threads=1), threading.Event(), threading.Event()
    drop = _Job.drop

    def noticed(job: _Job[str]) -> None:
        drop(job)
        dropped.set()

    monkeypatch.setattr(_Job, "drop", noticed)

    def work() -> str:
        begun.set()
        assert dropped.wait(DEADLINE_S)
        return "done"

    runs, waits = worker.submit(work), worker.submit(lambda: "never")
    assert await asyncio.to_thread(begun.wait, DEADLINE_S)
    worker.close()
    assert await within(runs) == "done"
    assert waits.cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        worker.submit(lambda: None)


def test_closing_after_its_loop_ends_quietly() -> None:
    async def leave() -> Worker:
        worker = Worker(threads=1)
        worker.submit(lambda: None)
        return worker

    worker = asyncio.run(leave())
    worker.close()


async def test_nothing_of_a_function_is_kept_once_it_has_run(worker: Worker) -> None:
    """It has views of a slot, which must be gone before the slot is unmapped."""

    class View:
        pass

    view, gone = View(), threading.Event()
    weakref.finalize(view, gone.set)
    await worker.run(partial(id, view))
    del view
    assert await asyncio.to_thread(gone.wait, DEADLINE_S)


async def test_what_runs_should_end_for_what_waits_behind_it(worker: Worker) -> None:
    begun, may_look = threading.Event(), threading.Event()
    found: list[bool] = []

    def work() -> None:
        found.append(worker.should_yield)
        begun.set()
        assert may_look.wait(DEADLINE_S)
        found.append(worker.should_yield)

    runs = worker.submit(work)
    assert await asyncio.to_thread(begun.wait, DEADLINE_S)
    waits = worker.submit(lambda: None)
    may_look.set()
    await within(runs)
    await within(waits)
    assert found == [False, True]


async def test_what_runs_should_end_once_nobody_waits_for_it(worker: Worker) -> None:
    begun, may_look = threading.Event(), threading.Event()
    found: list[bool] = []

    def work() -> None:
        begun.set()
        assert may_look.wait(DEADLINE_S)
        found.append(worker.should_yield)

    runs = worker.submit(work)
    assert await asyncio.to_thread(begun.wait, DEADLINE_S)
    runs.cancel()
    may_look.set()
    await worker.run(lambda: None)
    assert found == [True]


async def test_what_runs_should_end_when_the_worker_is_closed() -> None:
    worker, begun = Worker(threads=1), threading.Event()

    def work() -> bool:
        begun.set()
        until = time.monotonic() + DEADLINE_S
        while not worker.should_yield and time.monotonic() < until:
            pass
        return worker.should_yield

    runs = worker.submit(work)
    assert await asyncio.to_thread(begun.wait, DEADLINE_S)
    worker.close()
    assert await within(runs)
