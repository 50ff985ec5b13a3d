"""Movers that die in mid-chunk and come back under their old names (faults 11, 14).

Who is left finds out long before any lease, is poisoned by nothing, and serves others meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from services.engine.device import EngineDevice
from tests.e2e.hold import HELD_MOVER, Hold
from tests.e2e.mover_ends import Ends
from tests.flips import world_layout
from tests.mover_pair import mover_pair, restarted
from tests.oracles import bounded
from tests.unit.mover.cluster import MEBIBYTE
from worldline.errors import TransferFailed, Unavailable, WorldlineError

pytestmark = pytest.mark.asyncio(loop_scope="module")

LAYOUT = world_layout()
MIDDLE = LAYOUT.extent_bytes // MEBIBYTE // 2
#: A death is noticed within this, though the leases here are of a minute and the peers are busy.
NOTICED_S = 60.0


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def trio(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[Ends, Hold, AsyncExitStack]]:
    """Three movers, and a stack for those that come back; all are free after each test."""
    directory: Path = tmp_path_factory.mktemp("gone")
    hold = Hold(directory)
    devices = {name: EngineDevice() for name in ("a", "b", "c")}
    async with (
        mover_pair(directory, 16 * MEBIBYTE, devices, entry=HELD_MOVER, env=hold.env) as movers,
        AsyncExitStack() as stack,
    ):
        yield Ends(movers, LAYOUT), hold, stack


async def test_a_reader_that_dies_poisons_neither_its_source_nor_its_name(
    trio: tuple[Ends, Hold, AsyncExitStack],
) -> None:
    """Fault 14: the source serves another at once, and the dead one's successor as any other."""
    ends, hold, stack = trio
    async with bounded(250):
        slot = await ends.hop("b", "a", await ends.filled("b"))  # both ends of the path are warm
        move = await ends.reserve("a", "b")
        hold.arm("a", MIDDLE)
        pushing = asyncio.ensure_future(ends.push("a", "b", move, slot))
        await hold.held()
        await ends.node("b").process.kill()
        async with asyncio.timeout(NOTICED_S):
            with pytest.raises(TransferFailed) as caught:
                await pushing
        assert caught.value.reason
        there = await ends.hop("a", "c", slot)
        assert await ends.bytes_of("c") == ends.data
        ends.movers.nodes["b"] = await restarted(stack, ends.node("b"))
        again = await ends.hop("c", "b", there)
        assert await ends.bytes_of("b") == ends.data
        back = await ends.hop("b", "a", again)
        assert await ends.bytes_of("a") == ends.data
        assert await ends.movers.release("a", back)
        for name in ("a", "b", "c"):
            await ends.until_free(name, NOTICED_S)


async def test_a_source_that_dies_in_mid_chunk_gives_its_target_free(
    trio: tuple[Ends, Hold, AsyncExitStack],
) -> None:
    """Fault 11, without even a word: the lease of a minute is not waited for."""
    ends, hold, stack = trio
    async with bounded(250):
        slot = await ends.filled("a")
        move = await ends.reserve("a", "b")
        hold.arm("a", MIDDLE)
        pushing = asyncio.ensure_future(ends.push("a", "b", move, slot))
        await hold.held()
        await ends.node("a").process.kill()
        with pytest.raises(WorldlineError) as caught:
            await pushing
        assert isinstance(caught.value, Unavailable)
        await ends.until_free("b", NOTICED_S)
        # Its slot is nobody's, so a session of the same name begins there from another slot.
        ends.movers.nodes["a"] = await restarted(stack, ends.node("a"))
        there = await ends.hop("a", "b", await ends.filled("a"))
        assert await ends.bytes_of("b") == ends.data
        assert await ends.between("b", "a").release("a", there)
        for name in ("a", "b"):
            await ends.until_free(name, NOTICED_S)
