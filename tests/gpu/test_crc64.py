"""CRC-64 on the GPU: equal to the library on any input, length, address and layout."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from awscrt.checksums import crc64nvme
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpu.conftest import Upload
from tests.unit.state.strategies import trees
from worldline.cuda.digest import CudaDigester
from worldline.state.digest import Digester
from worldline.state.layout import Layout, flat_layout
from worldline.state.tree import pack, plan


def slot_of(tree: object) -> tuple[Layout, bytes]:
    layout = plan(tree)
    slot = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    return pack(tree, layout, slot), slot.numpy().tobytes()


def expected(layout: Layout, data: bytes, granule_bytes: int) -> list[int]:
    digester = Digester(layout, granule_bytes)
    digester.update(0, digester.granule_count, memoryview(data))
    return digester.segment_crcs().tolist()


def on_device(
    layout: Layout, data: bytes, granule_bytes: int, upload: Upload, offset_bytes: int
) -> list[int]:
    digester = CudaDigester(layout, 0, granule_bytes)
    with upload(data, offset_bytes) as memory:
        digester.update(0, digester.granule_count, memory.part(offset_bytes, len(data)))
        crcs = digester.segment_crcs()
    digester.close()
    return crcs.tolist()


sizes = st.one_of(
    st.integers(1, 300),
    st.integers(1, 100_000),
    st.integers(1, 3_000_000),
    st.sampled_from([127, 128, 129, 8191, 8192, 8193, 16384, 1 << 20, (1 << 20) + 1]),
)


@given(sizes, st.integers(0, 400), st.sampled_from([1 << 10, 1 << 16, 1 << 20]), st.integers(0))
@settings(max_examples=150)
def test_any_length_at_any_address(
    upload: Upload, size_bytes: int, offset_bytes: int, granule_bytes: int, seed: int
) -> None:
    data = random.Random(seed).randbytes(size_bytes)
    layout = flat_layout("probe", size_bytes)
    crcs = on_device(layout, data, granule_bytes, upload, offset_bytes)
    assert crcs == [
        crc64nvme(data[at : at + granule_bytes]) for at in range(0, size_bytes, granule_bytes)
    ]


@given(trees(), st.sampled_from([1, 7, 64, 1000]), st.integers(0, 300))
@settings(max_examples=150)
def test_any_layout(upload: Upload, tree: object, granule_bytes: int, offset_bytes: int) -> None:
    layout, data = slot_of(tree)
    assert on_device(layout, data, granule_bytes, upload, offset_bytes) == expected(
        layout, data, granule_bytes
    )


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"\x01", b"\x80"])
def test_bytes_that_hide_mistakes(upload: Upload, fill: bytes) -> None:
    data = fill * 1_000_003
    layout = flat_layout("probe", len(data))
    assert on_device(layout, data, 1 << 20, upload, 5) == [crc64nvme(data)]


def test_one_segment_far_longer_than_any_granule(upload: Upload) -> None:
    data = np.random.default_rng(3).bytes((64 << 20) + 12_345)
    layout = flat_layout("probe", len(data))
    assert on_device(layout, data, 1 << 31, upload, 3) == [crc64nvme(data)]


@given(st.data())
@settings(max_examples=30)
def test_runs_read_their_own_bytes_only(upload: Upload, draw: st.DataObject) -> None:
    granule_bytes = draw.draw(st.sampled_from([100, 4096, 65536]))
    count = draw.draw(st.integers(2, 9))
    size_bytes = granule_bytes * count - draw.draw(st.integers(0, granule_bytes - 1))
    data = random.Random(size_bytes).randbytes(size_bytes)
    layout = flat_layout("probe", size_bytes)
    digester = CudaDigester(layout, 0, granule_bytes)
    cut = draw.draw(st.integers(1, count - 1))
    with upload(data) as slot, upload(data[cut * granule_bytes :], 77) as elsewhere:
        # The run behind the cut is digested from another place, and what it may not read differs.
        slot.whole.tensor()[cut * granule_bytes : size_bytes].fill_(0)
        torch.cuda.synchronize(0)
        behind = elsewhere.part(77, size_bytes - cut * granule_bytes)
        digester.update(cut, count - cut, behind)
        digester.update(0, cut, slot.part(0, cut * granule_bytes))
        assert digester.segment_crcs().tolist() == expected(layout, data, granule_bytes)
    digester.close()
