"""The model-blind proof on CPUs: see `tests/language_move.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import torch

from services.engine.device import CPU_DEVICE
from tests.language_move import (
    KINDS,
    Road,
    check_that_decoding_goes_on,
    check_that_one_bit_matters,
    road,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.parametrize("kind", KINDS)]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def way(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Road]:
    former = torch.get_num_threads()
    torch.set_num_threads(1)
    async with road(tmp_path_factory.mktemp("movers"), CPU_DEVICE, CPU_DEVICE) as made:
        yield made
    torch.set_num_threads(former)


async def test_greedy_decoding_goes_on_token_for_token(way: Road, kind: str) -> None:
    await check_that_decoding_goes_on(way, kind)


async def test_one_bit_is_refused_and_would_have_been_heard(way: Road, kind: str) -> None:
    await check_that_one_bit_matters(way, kind)
