"""What goes wrong with zeros: a look or a write that fails, ends late, or is given up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from services.mover.slots import SlotRole
from tests.unit.fakecuda import HostReadingLook
from tests.unit.mover.blank_ends import SIZES, WAYS, Ends, ends
from tests.unit.mover.cluster import layout_of, until
from worldline.errors import DeadlineExceeded, TransferFailed, Unavailable, WorldlineError
from worldline.rpc.push import PushCall

#: One way for each kind of memory at each end.
HOST, DEVICE = WAYS[0], WAYS[2]
LAYOUT = layout_of(SIZES)


@pytest.fixture(params=[HOST, DEVICE], ids="-".join)
async def cluster(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[Ends]:
    async with ends(request.param, monkeypatch, tmp_path) as found:
        yield found


class Held:
    """A blocking call that goes on when told to."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        self.begun.set()
        assert self.go_on.wait(60)
        return self._call(*arguments)


def failing(error: WorldlineError) -> Callable[..., Any]:
    def fail(*_: Any) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    "error", [Unavailable("no compiler", reason="COMPILER_UNAVAILABLE"), DeadlineExceeded("late")]
)
async def test_where_nobody_can_look_everything_travels_and_the_log_says_so(
    cluster: Ends, monkeypatch: pytest.MonkeyPatch, error: WorldlineError
) -> None:
    ticket, slot, reserved = await cluster.ready(LAYOUT)
    monkeypatch.setattr(cluster.memory("a", slot), "zero_granules", failing(error))
    with capture_logs() as logs:
        outcome, _ = await cluster.push(
            ticket, cluster.manifest(LAYOUT), reserved.reservation_id, slot
        )
    assert cluster.equal(LAYOUT, slot, reserved.slot)
    stats = outcome.push_stats
    assert (stats.blank_bytes, stats.wire_bytes) == (0, LAYOUT.extent_bytes)
    said = [each for each in logs if each["event"] == "push.no_look"]
    assert [each["device"] for each in said] == [cluster.memory("a", slot).device]
    assert error.message in said[0]["error"]


async def test_a_target_that_cannot_write_zeros_takes_nothing(
    cluster: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks could land before what was queued there comes; so it is no fall-back."""
    ticket, slot, reserved = await cluster.ready(LAYOUT)
    error = DeadlineExceeded("a stream did not finish within 30 s")
    monkeypatch.setattr(cluster.memory("b", reserved.slot), "clear", failing(error))
    with pytest.raises(DeadlineExceeded):
        await cluster.push(ticket, cluster.manifest(LAYOUT), reserved.reservation_id, slot)
    await cluster.nodes["b"].until_free(reserved.slot)
    await cluster.nodes["a"].until_quiet()
    assert cluster.nodes["a"].role(slot) is SlotRole.LIVE


async def test_a_slot_that_is_looked_through_is_not_given_to_the_next(
    cluster: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket, slot, reserved = await cluster.ready(LAYOUT)
    memory = cluster.memory("a", slot)
    held = Held(memory.zero_granules)
    monkeypatch.setattr(memory, "zero_granules", held)
    manifest = cluster.manifest(LAYOUT)
    order = cluster.order(ticket, manifest, reserved.reservation_id, slot)
    push = PushCall(cluster.nodes["a"].stub, order, 100)
    arming = asyncio.create_task(push.arm())
    try:
        await until(held.begun.is_set)
        arming.cancel()
        await asyncio.gather(arming, return_exceptions=True)
        await push.close()
        assert await cluster.release("a", slot)
        assert cluster.nodes["a"].role(slot) is SlotRole.QUARANTINED
    finally:
        held.go_on.set()
    await cluster.nodes["a"].until_free(slot)
    await cluster.nodes["a"].until_quiet()


async def test_a_slot_that_zeros_are_written_to_is_not_given_to_the_next(
    cluster: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket, slot, reserved = await cluster.ready(LAYOUT)
    memory = cluster.memory("b", reserved.slot)
    held = Held(memory.clear)
    monkeypatch.setattr(memory, "clear", held)
    order = cluster.order(ticket, cluster.manifest(LAYOUT), reserved.reservation_id, slot)
    push = PushCall(cluster.nodes["a"].stub, order, 100)
    arming = asyncio.create_task(push.arm())
    try:
        await until(held.begun.is_set)
        assert await cluster.release("b", reserved.slot)
        with pytest.raises(WorldlineError):
            await arming
        assert cluster.nodes["b"].role(reserved.slot) is SlotRole.QUARANTINED
    finally:
        held.go_on.set()
        await push.close()
    await cluster.nodes["b"].until_free(reserved.slot)
    for node in cluster.nodes.values():
        await node.until_quiet()
    assert cluster.nodes["a"].role(slot) is SlotRole.LIVE


async def test_a_look_at_what_is_frozen_that_fails_ends_the_move(
    cluster: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it nothing would prove that what stayed behind was zeros."""
    manifest = cluster.manifest(LAYOUT)
    ticket, slot, reserved = await cluster.ready(LAYOUT)
    order = cluster.order(ticket, manifest, reserved.reservation_id, slot, chunk_bytes=1 << 20)
    push = PushCall(cluster.nodes["a"].stub, order, 100)
    memory = cluster.memory("a", slot)
    name = "zero_granules" if memory.device == "cpu" else "look"
    try:
        await push.arm()
        error = TransferFailed("it failed", reason="CUDA_FAILED")
        monkeypatch.setattr(memory, name, failing(error))
        await push.go(manifest.block_index, manifest.layout)
        with pytest.raises(TransferFailed):
            await push.outcome()
    finally:
        await push.close()
    await cluster.nodes["b"].until_free(reserved.slot)
    for node in cluster.nodes.values():
        await node.until_quiet()
    assert cluster.nodes["a"].role(slot) is SlotRole.LIVE


async def test_a_device_that_takes_its_time_is_waited_for_by_a_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At what is frozen too: meanwhile the event loop serves everybody else."""
    waited: list[bool] = []
    found = HostReadingLook.found

    def slow(look: HostReadingLook, timeout_s: float = 10.0) -> Any:
        waited.append(threading.current_thread() is threading.main_thread())
        return found(look, timeout_s)

    monkeypatch.setattr(HostReadingLook, "is_done", False)
    monkeypatch.setattr(HostReadingLook, "found", slow)
    async with ends(DEVICE, monkeypatch, tmp_path) as cluster:
        ticket, slot, reserved = await cluster.ready(LAYOUT)
        manifest = cluster.manifest(LAYOUT)
        outcome, _ = await cluster.push(ticket, manifest, reserved.reservation_id, slot)
        assert cluster.equal(LAYOUT, slot, reserved.slot)
    assert outcome.push_stats.blank_bytes > 0
    assert waited == [False, False]  # before the freeze, and after it
