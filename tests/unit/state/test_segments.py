"""Segments: comparing two ends by the CRCs of their segments, and composing either's digests."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.state.strategies import trees
from worldline.errors import InvalidInput
from worldline.state.difference import compare, compare_segments
from worldline.state.digest import Digester, compose, digest_slot
from worldline.state.layout import Layout, flat_layout
from worldline.state.segments import segments_of
from worldline.state.tree import TensorSpec, pack, plan


def slot_of(tree: object) -> tuple[Layout, bytearray]:
    layout = plan(tree)
    slot = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    layout = pack(tree, layout, slot)
    return layout, bytearray(slot.numpy().tobytes())


def crcs_of(layout: Layout, data: bytes | bytearray, granule_bytes: int) -> np.ndarray:
    digester = Digester(layout, granule_bytes)
    digester.update(0, digester.granule_count, memoryview(data))
    return digester.segment_crcs()


@given(trees(), st.sampled_from([1, 7, 64, 1000]))
@settings(max_examples=100)
def test_the_other_end_composes_the_same_digests(tree: object, granule_bytes: int) -> None:
    layout, data = slot_of(tree)
    crcs = crcs_of(layout, data, granule_bytes)
    received = np.frombuffer(crcs.tobytes(), np.uint64)
    digests = digest_slot(layout, memoryview(data), granule_bytes)
    assert compose(layout, received, granule_bytes) == digests


@given(trees(), st.sampled_from([8, 16, 64]), st.data())
@settings(max_examples=75)
def test_a_flipped_bit_is_named_as_by_comparing_digests(
    tree: object, granule_bytes: int, draw: st.DataObject
) -> None:
    layout, data = slot_of(tree)
    expected = crcs_of(layout, data, granule_bytes)
    assert compare_segments(layout, granule_bytes, expected, expected.copy()) is None
    if not data:
        return
    data[draw.draw(st.integers(0, len(data) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    actual = crcs_of(layout, data, granule_bytes)
    found = compare_segments(layout, granule_bytes, expected, actual)
    assert found is not None
    assert found == compare(
        layout,
        compose(layout, expected, granule_bytes),
        compose(layout, actual, granule_bytes),
    )


def test_of_many_differences_the_first_granule_is_named_and_a_leaf_that_differs_there() -> None:
    layout = plan([TensorSpec(torch.uint8, (300,)), TensorSpec(torch.uint8, (300,))])
    data = bytearray(layout.extent_bytes)
    expected = crcs_of(layout, data, 256)
    data[400] = 1  # padding
    data[800] = 1  # the second leaf reaches into granule 2, but differs in 3 only
    found = compare_segments(layout, 256, expected, crcs_of(layout, data, 256))
    assert found is not None
    assert (found.leaf, found.granule) == (None, 1)
    data[290] = 1
    found = compare_segments(layout, 256, expected, crcs_of(layout, data, 256))
    assert found is not None
    assert (found.leaf, found.granule) == ("[0]", 1)


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros(3, np.uint64),
        np.zeros(5, np.uint64),
        np.zeros((4, 1), np.uint64),
        np.zeros(0, np.uint64),
        np.zeros(4, np.int64),
        np.zeros(4, np.float64),
        [0, 0, 0, 0],
        None,
    ],
)
def test_what_is_no_crc_per_segment_is_refused_and_never_equal(bad: np.ndarray) -> None:
    layout = flat_layout("probe", 256)
    good = np.zeros(4, np.uint64)
    assert segments_of(layout, 64).count == 4
    for pair in ((good, bad), (bad, good), (bad, bad)):
        with pytest.raises(InvalidInput):
            compare_segments(layout, 64, *pair)
    with pytest.raises(InvalidInput):
        compose(layout, bad, 64)


def test_handed_out_crcs_are_the_callers_own() -> None:
    layout = flat_layout("probe", 128)
    digester = Digester(layout, 64)
    digester.update(0, 2, memoryview(bytes(128)))
    digester.segment_crcs()[0] ^= np.uint64(1)
    assert digester.digests() == digest_slot(layout, memoryview(bytes(128)), 64)


def test_segments_of_one_layout_are_made_once() -> None:
    one, other = flat_layout("probe", 128), flat_layout("probe", 128)
    assert segments_of(one, 64) is segments_of(other, 64)
    assert segments_of(one, 64) is not segments_of(one, 32)
    assert segments_of(flat_layout("probe", 129), 64) is not segments_of(one, 64)
