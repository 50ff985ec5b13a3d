from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.sdk.fakes import Stage
from worldline.sdk import Client


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    built = await Stage.build()
    yield built
    await built.close()


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[Client]:
    async with Client(
        stage.address, timeout_s=60, move_timeout_s=60, block_timeout_s=60, patience_s=60
    ) as made:
        yield made
