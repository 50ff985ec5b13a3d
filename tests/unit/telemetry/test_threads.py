"""The trace goes along to every thread on which a service does a call's work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.engine.worker import Worker
from services.mover.crossing import Crossing, cross
from services.mover.runtime import MoverRuntime
from services.placement.directory import Directory
from worldline.telemetry import current_trace_id, span, start


@pytest.fixture(autouse=True)
def telemetry() -> Iterator[None]:
    started = start("test")
    yield
    started.shutdown()


async def test_to_the_directorys(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path / "directory.sqlite"))
    await directory.open()
    try:
        with span("move") as move:
            assert await directory.do(lambda db: current_trace_id()) == move.trace_id
            written = directory.submit(lambda db: current_trace_id())
        assert await written == move.trace_id
        assert await directory.do(lambda db: current_trace_id()) == ""
    finally:
        await directory.close()


async def test_to_the_engines_worker() -> None:
    worker = Worker(1)
    try:
        with span("engine.attach") as attach:
            assert await worker.run(current_trace_id) == attach.trace_id
        assert await worker.run(current_trace_id) == ""
    finally:
        worker.close()


async def test_to_the_movers_pool() -> None:
    with ThreadPoolExecutor(1) as pool, span("mover.reserve") as reserve:
        found: list[str] = []
        # All that it needs of a runtime.
        runtime = cast(Any, SimpleNamespace(pool=pool))
        await MoverRuntime._on_a_thread(runtime, lambda: found.append(current_trace_id()))
        assert found == [reserve.trace_id]


async def test_to_a_crossings_thread() -> None:
    class ByADevice(Crossing):
        carries = False

    with ThreadPoolExecutor(1) as pool, span("mover.park") as park:
        assert await cross(ByADevice(), 0, pool, 1, current_trace_id) == park.trace_id


async def test_what_runs_at_once_keeps_its_own() -> None:
    worker = Worker(1)

    async def one() -> bool:
        with span("move") as move:
            return await worker.run(current_trace_id) == move.trace_id

    try:
        assert all(await asyncio.gather(*(one() for _ in range(20))))
    finally:
        worker.close()
