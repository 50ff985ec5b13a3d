"""States of a model's own tensors on a GPU: one launch each way, and a captured graph goes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from services.engine.carrier import carrier_for
from tests.unit.engine.owning import addresses, fresh, grown, tensors_of
from tests.unit.state.test_mg2 import state as mg2_state
from worldline.state.layout import Layout
from worldline.state.tree import TensorSpec, pack, plan

SPEC = {
    "rows": TensorSpec(torch.float32, (60, 50)),
    "wide": TensorSpec(torch.bfloat16, (3, 4, 5)),
    "one": TensorSpec(torch.int64, ()),
    "none": TensorSpec(torch.float32, (0, 3)),
    "long": TensorSpec(torch.bfloat16, (1, 700, 2, 64)),
}


@pytest.fixture
def layout() -> Layout:
    return plan(SPEC)


def _state() -> dict[str, Any]:
    """Random bits in tensors behind gaps, transposed, with steps."""
    state = grown(SPEC, lambda spec: fresh(spec).cuda(0))
    state["rows"] = torch.zeros(50, 120, device="cuda:0")[:, ::2].t()
    state["wide"] = torch.zeros(5, 3, 4, dtype=torch.bfloat16, device="cuda:0").permute(1, 2, 0)
    generator = torch.Generator().manual_seed(3)
    for tensor in tensors_of(state):
        size = tensor.numel() * tensor.element_size()
        noise = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
        tensor.copy_(noise.view(tensor.dtype).view(tensor.shape))
    torch.cuda.synchronize(0)
    return state


def _slot(layout: Layout) -> torch.Tensor:
    return torch.zeros(layout.extent_bytes, dtype=torch.uint8, device="cuda:0")


def test_every_stride_and_bit_pattern_is_carried(layout: Layout) -> None:
    state, slot, expected = _state(), _slot(layout), _slot(layout)
    pack(state, layout, expected)
    before = addresses(state)
    carrier = carrier_for(layout, tensors_of(state), slot)
    carrier.to_slot(slot)
    torch.cuda.synchronize(0)
    assert torch.equal(slot, expected)
    for tensor in tensors_of(state):
        tensor.fill_(1)
    torch.cuda.synchronize(0)
    carrier.to_tensors(slot)
    torch.cuda.synchronize(0)
    again = _slot(layout)
    pack(state, layout, again)
    assert torch.equal(again, expected)
    assert addresses(state) == before
    carrier.close()


def test_a_captured_graph_goes_on_with_the_state_that_was_carried_in(layout: Layout) -> None:
    """Fault 30: the graph reads and writes the addresses that it was captured with."""
    here, there = _state(), _state()
    for state in (here, there):
        state["long"].normal_()
        state["one"].zero_()
    graph = torch.cuda.CUDAGraph()
    _step(there)  # sets up what must not be set up within a capture
    torch.cuda.synchronize(0)
    with torch.cuda.graph(graph):
        _step(there)
    slot = _slot(layout)
    source = carrier_for(layout, tensors_of(here), slot)
    target = carrier_for(layout, tensors_of(there), slot)
    before = addresses(there)
    source.to_slot(slot)
    torch.cuda.synchronize(0)
    target.to_tensors(slot)
    torch.cuda.synchronize(0)
    for _ in range(3):
        graph.replay()
        _step(here)
    torch.cuda.synchronize(0)
    assert torch.equal(here["long"], there["long"])
    assert int(there["one"]) == 3
    assert addresses(there) == before
    source.close()
    target.close()


def _step(state: dict[str, Any]) -> None:
    state["one"].add_(1)
    state["long"].mul_(1.25).add_(state["one"])


def test_the_whole_of_mg2_goes_both_ways() -> None:
    """Every leaf of a real state: what comes back from other tensors is equal bit for bit."""
    spec: Any = mg2_state()
    layout = plan(spec)
    slot, back = _slot(layout), _slot(layout)
    slot.random_(0, 256)
    state = grown(spec, lambda one: torch.empty(one.shape, dtype=one.dtype, device="cuda:0"))
    carrier = carrier_for(layout, tensors_of(state), slot)
    torch.cuda.synchronize(0)
    carrier.to_tensors(slot)
    carrier.to_slot(back)
    torch.cuda.synchronize(0)
    assert torch.equal(back, slot)
    carrier.close()
