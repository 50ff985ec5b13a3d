"""A boundary read where it rests on a GPU has the flags that a CPU would find."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from services.engine.baseline import initial_crcs, zero_crcs
from services.engine.chores import Chores
from services.engine.device import describe_device
from services.engine.segment_reading import read_segments
from services.engine.worker import Worker
from tests.unit.engine.support import tiny_world
from worldline.state.tree import materialize, plan


@pytest.mark.parametrize("granule_bytes", [128, 4096, 1 << 20])
def test_segments_read_on_the_device_equal_the_cpus(granule_bytes: int) -> None:
    layout = plan(tiny_world().state_spec())
    generator = torch.Generator().manual_seed(7)
    host = torch.randint(256, (layout.extent_bytes,), generator=generator, dtype=torch.uint8)
    device = host.to("cuda:0")
    torch.cuda.synchronize()
    here = read_segments(layout, host, granule_bytes)
    assert np.array_equal(read_segments(layout, device, granule_bytes), here)
    zeros = torch.zeros_like(device)
    torch.cuda.synchronize()
    found = read_segments(layout, zeros, granule_bytes)
    assert np.array_equal(found, zero_crcs(layout, granule_bytes))


async def test_the_first_state_made_anew_on_the_device_is_the_sessions() -> None:
    model = tiny_world()  # `initialise` needs no weights: they may lie elsewhere
    layout = plan(model.state_spec())
    buffer = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    model.initialise(materialize(layout, buffer), 7)
    worker = Worker(1, describe_device("cuda:0"))
    try:
        found = await initial_crcs(Chores(worker), model, layout, 7, 256)
    finally:
        worker.close()
    assert found is not None
    assert np.array_equal(found, read_segments(layout, buffer, 256))
