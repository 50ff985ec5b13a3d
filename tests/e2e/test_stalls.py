"""Peers that are alive and stuck (fault 9): stopped at any share of the bytes, and gone on with.

Nobody waits longer than the lease and a stated slack; what completes late completes nothing; both
slots serve the next tenant, in whom no late byte lands.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from services.engine.device import EngineDevice
from tests.e2e.hold import HELD_MOVER, Hold, stopped, until_stopped
from tests.e2e.mover_ends import SESSION, Ends
from tests.flips import world_layout
from tests.mover_pair import mover_pair
from tests.oracles import bounded
from tests.unit.mover.cluster import MEBIBYTE
from worldline.errors import Conflict, WorldlineError

pytestmark = pytest.mark.asyncio(loop_scope="module")

LAYOUT = world_layout()
CHUNKS = -(-LAYOUT.extent_bytes // MEBIBYTE)
#: Per cent of the bytes that have moved, and the send before which the source is held then.
SHARES = {0: 1, 50: CHUNKS // 2 + 1, 99: CHUNKS, 100: CHUNKS + 1}
#: Nothing waits for it: clocks are put on.
LEASE_S = 120.0
#: How much later than its lease a transfer may end, on a machine with much else to do.
SLACK_S = 60.0


@pytest_asyncio.fixture(
    loop_scope="module", scope="module", params=["", "tcp,self"], ids=["in-place", "tcp"]
)
async def ends(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Ends, Hold]]:
    directory: Path = tmp_path_factory.mktemp("stalls")
    hold = Hold(directory)
    env = hold.env | ({"UCX_TLS": request.param} if request.param else {})
    devices = {name: EngineDevice() for name in ("a", "b")}
    slot_bytes = 16 * MEBIBYTE
    async with mover_pair(directory, slot_bytes, devices, entry=HELD_MOVER, env=env) as movers:
        yield Ends(movers, LAYOUT), hold


async def begin(
    ends: Ends, hold: Hold, share: int
) -> tuple[asyncio.Future[object], str, object, object]:
    """A push that is held at that share of its bytes."""
    slot = await ends.filled("a")
    move = await ends.reserve("a", "b", lease_ms=round(LEASE_S * 1e3))
    hold.arm("a", SHARES[share])
    pushing = asyncio.ensure_future(ends.push("a", "b", move, slot))
    await hold.held()
    return pushing, move.reserved.reservation_id, move.reserved.slot, slot


async def refuse_to_promote(ends: Ends, reservation_id: str, slot: object) -> None:
    with pytest.raises(Conflict) as caught:
        await ends.movers.promote(reservation_id, slot)  # type: ignore[arg-type]
    assert caught.value.reason == "RESERVATION_ENDED"


async def check_next(ends: Ends, slot: object) -> None:
    """The state goes over and comes back, through the same slots."""
    there = await ends.hop("a", "b", slot)  # type: ignore[arg-type]
    assert await ends.bytes_of("b") == ends.data
    back = await ends.hop("b", "a", there)
    assert await ends.bytes_of("a") == ends.data
    assert await ends.movers.release("a", back)
    for name in ("a", "b"):
        await ends.until_free(name, SLACK_S)


@pytest.mark.parametrize("share", SHARES)
async def test_a_source_that_is_stopped(ends: tuple[Ends, Hold], share: int) -> None:
    async with bounded(250):
        ends_, hold = ends
        pushing, reservation_id, reserved, slot = await begin(ends_, hold, share)
        source = ends_.node("a").process
        with stopped(source):
            await until_stopped(source)
            hold.release()  # it goes on at once when it runs again
            await hold.later("b", LEASE_S)
            await ends_.until_free("b", SLACK_S)
            await refuse_to_promote(ends_, reservation_id, reserved)
            tenant = await ends_.live("b", "next")
            assert not pushing.done()
        async with asyncio.timeout(SLACK_S):
            with pytest.raises(WorldlineError) as caught:
                await pushing
        assert caught.value.reason in ("LEASE_EXPIRED", "TARGET_GONE", "STREAM_ENDED")
        await refuse_to_promote(ends_, reservation_id, reserved)
        await ends_.until_free("a", SLACK_S, occupied=1)
        assert not any(await ends_.bytes_of("b", "next")), "a late byte in the next tenant's slot"
        assert await ends_.movers.release("b", tenant, "next")
        await check_next(ends_, slot)


@pytest.mark.parametrize("share", SHARES)
async def test_a_target_that_is_stopped(ends: tuple[Ends, Hold], share: int) -> None:
    async with bounded(250):
        ends_, hold = ends
        pushing, reservation_id, reserved, slot = await begin(ends_, hold, share)
        target = ends_.node("b").process
        with stopped(target):
            await until_stopped(target)
            hold.release()
            await hold.later("a", LEASE_S)
            async with asyncio.timeout(SLACK_S):
                with pytest.raises(WorldlineError) as caught:
                    await pushing
            assert caught.value.reason == "LEASE_EXPIRED"
            await ends_.until_free("a", SLACK_S, occupied=1)
            assert await ends_.bytes_of("a", SESSION) == ends_.data
        await ends_.until_free("b", SLACK_S)
        await refuse_to_promote(ends_, reservation_id, reserved)
        await check_next(ends_, slot)
