"""Fixtures of the engine's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.unit.engine.support import Harness, SlotServer

SLOT_BYTES = 4 << 20


@pytest.fixture
def servers(tmp_path: Path):
    pair = [SlotServer(str(tmp_path / f"{name}.sock"), SLOT_BYTES) for name in ("n1", "n2")]
    yield pair
    for server in pair:
        server.close()


@pytest.fixture
async def source(servers: list[SlotServer]):
    async with Harness(servers[0], node_id="n1") as harness:
        yield harness


@pytest.fixture
async def target(servers: list[SlotServer]):
    async with Harness(servers[1], node_id="n2") as harness:
        yield harness


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
