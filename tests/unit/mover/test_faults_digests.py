"""Digests that are given up: nobody reads a slot any more once it is said so, however busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from services.mover.chunking import Chunk
from services.mover.digesting import HostDigest, digest_at_rest
from services.mover.memory.host import HostMemory
from tests.unit.mover.cluster import MEBIBYTE, until
from worldline.state.layout import flat_layout

LAYOUT = flat_layout("leaf", 3 * MEBIBYTE)
CHUNK = Chunk(0, 0, LAYOUT.extent_bytes, 0, 3)


class Gate:
    """Stops whoever reads the slot until it is opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.inside = 0
        plain = HostDigest._update

        def update(digest: HostDigest, *piece: int) -> None:
            self.inside += 1
            self.reached.set()
            assert self.opened.wait(60)
            plain(digest, *piece)
            self.inside -= 1

        patch.setattr(HostDigest, "_update", update)


@pytest.fixture
def memory() -> Iterator[HostMemory]:
    memory = HostMemory("wl-test-digests", LAYOUT.extent_bytes)
    yield memory
    memory.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()


async def test_a_read_back_that_is_cancelled_ends_after_its_threads(
    memory: HostMemory, pool: ThreadPoolExecutor, gate: Gate
) -> None:
    reading = asyncio.ensure_future(digest_at_rest(LAYOUT, memory, pool))
    await until(gate.reached.is_set)
    reading.cancel()
    done, _ = await asyncio.wait({reading}, timeout=0.1)
    assert not done, "it ended while a thread was reading"
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert gate.inside == 0


async def test_a_transfer_that_is_cancelled_settles_after_its_threads(
    memory: HostMemory, pool: ThreadPoolExecutor, gate: Gate
) -> None:
    digest = HostDigest(LAYOUT, memory, pool)
    digest.read(CHUNK)
    waiting = asyncio.ensure_future(digest.segment_crcs())
    await until(gate.reached.is_set)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    settling = asyncio.ensure_future(digest.settle())
    done, _ = await asyncio.wait({settling}, timeout=0.1)
    assert not done, "it settled while a thread was reading"
    gate.opened.set()
    await settling
    assert gate.inside == 0
