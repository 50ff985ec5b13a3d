"""Gather on the GPU: every leaf in its place, whatever its shape, stride and address."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpu.conftest import TIMEOUT_S
from tests.unit.state.test_mg2 import state
from worldline.cuda.gather import Gather
from worldline.cuda.memory import DeviceMemory
from worldline.cuda.stream import Stream
from worldline.errors import InvalidInput
from worldline.state.harvest import TORCH_DTYPES
from worldline.state.layout import Layout
from worldline.state.tree import plan

Tensors = list[torch.Tensor]


@st.composite
def tensor_lists(draw: st.DrawFn) -> Tensors:
    """Tensors that lie densely, transposed, expanded, with gaps, at odd addresses, or empty."""
    generator = torch.Generator(device="cuda:0").manual_seed(draw(st.integers(0, 1 << 30)))
    found = []
    for _ in range(draw(st.integers(0, 8))):
        dtype = draw(st.sampled_from([torch.uint8, torch.bfloat16, torch.float32, torch.int64]))
        rows, columns = draw(st.integers(0, 70)), draw(st.sampled_from([0, 1, 3, 64, 5000]))
        skipped = draw(st.integers(0, 17))
        raw = torch.randint(
            0,
            256,
            ((rows * columns + skipped) * dtype.itemsize,),
            dtype=torch.uint8,
            device="cuda:0",
            generator=generator,
        )
        dense = raw.view(dtype)[skipped:].view(rows, columns)
        forms = {
            "dense": dense,
            "transposed": dense.t(),
            "expanded": dense.unsqueeze(1).expand(rows, 3, columns),
            "gaps": dense[:, : columns // 2],
            "steps": dense[::2],
            "scalar": dense.flatten()[0] if dense.numel() else dense,
        }
        found.append(forms[draw(st.sampled_from(sorted(forms)))])
    return found


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().flatten().view(torch.uint8).cpu()


def views(layout: Layout, memory: DeviceMemory) -> Tensors:
    slot = memory.whole.tensor()
    return [
        slot[: slot.numel() // dtype.itemsize * dtype.itemsize]
        .view(dtype)
        .as_strided(leaf.shape, leaf.stride, leaf.offset_bytes // dtype.itemsize)
        for leaf in layout.tensors
        for dtype in [TORCH_DTYPES[leaf.dtype]]
    ]


@given(tensor_lists())
@settings(max_examples=80)
def test_leaves_go_to_their_places_and_back(stream: Stream, tensors: Tensors) -> None:
    torch.cuda.synchronize(0)
    layout = plan(tensors)
    with DeviceMemory(layout.extent_bytes + 256, 0) as memory:
        memory.whole.tensor().fill_(0xEE)
        torch.cuda.synchronize(0)
        gather = Gather(layout, tensors, stream)
        gather.gather(memory.whole)
        stream.wait(TIMEOUT_S)
        placed = views(layout, memory)
        for tensor, view in zip(tensors, placed, strict=True):
            assert torch.equal(bits(view), bits(tensor))
        assert memory.whole.tensor()[layout.extent_bytes :].unique().tolist() == [0xEE]
        wanted = [bits(tensor) for tensor in tensors]
        for tensor in tensors:
            if tensor.numel() and 0 not in tensor.stride():
                tensor.zero_()
        torch.cuda.synchronize(0)
        gather.scatter(memory.whole)
        stream.wait(TIMEOUT_S)
        assert all(
            torch.equal(bits(one), other) for one, other in zip(tensors, wanted, strict=True)
        )
        gather.close()


def test_a_full_size_state_in_one_launch_each_way(stream: Stream) -> None:
    layout = plan(state())
    generator = torch.Generator(device="cuda:0").manual_seed(5)
    tensors = [
        torch.randint(
            0, 256, (leaf.size_bytes,), dtype=torch.uint8, device="cuda:0", generator=generator
        )
        .view(TORCH_DTYPES[leaf.dtype])
        .view(leaf.shape)
        for leaf in layout.tensors
    ]
    copies = [torch.zeros_like(tensor) for tensor in tensors]
    torch.cuda.synchronize(0)
    with DeviceMemory(layout.extent_bytes, 0) as memory:
        there, back = Gather(layout, tensors, stream), Gather(layout, copies, stream)
        there.gather(memory.whole)
        back.scatter(memory.whole)
        stream.wait(TIMEOUT_S)
        for tensor, copy in zip(tensors, copies, strict=True):
            assert torch.equal(tensor.view(torch.uint8), copy.view(torch.uint8))
        there.close()
        back.close()


def test_what_does_not_fit_is_refused(stream: Stream) -> None:
    tensors = [torch.zeros(8, device="cuda:0"), torch.zeros(3, device="cuda:0")]
    layout = plan(tensors)
    for wrong in (
        tensors[:1],
        [tensors[0], torch.zeros(4, device="cuda:0")],
        [tensors[0], torch.zeros(3, device="cuda:0", dtype=torch.int32)],
        [tensors[0], torch.zeros(3)],
    ):
        with pytest.raises(InvalidInput):
            Gather(layout, wrong, stream)
    gather = Gather(layout, tensors, stream)
    with DeviceMemory(layout.extent_bytes - 1, 0) as memory, pytest.raises(InvalidInput):
        gather.gather(memory.whole)
    gather.close()
