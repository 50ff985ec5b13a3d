"""Ranges: the CRC of any run of whole segments, composed, is that of its bytes."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import torch
from awscrt.checksums import crc64nvme
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.state.strategies import trees
from worldline.state.digest import Digester
from worldline.state.layout import Layout
from worldline.state.ranges import Ranges, shares_of
from worldline.state.segments import segments_of
from worldline.state.tree import plan


def noise(layout: Layout, seed: int) -> memoryview:
    return memoryview(random.Random(seed).randbytes(layout.extent_bytes))


def crcs_of(layout: Layout, data: memoryview, granule_bytes: int) -> np.ndarray:
    digester = Digester(layout, granule_bytes)
    digester.update(0, digester.granule_count, data)
    return digester.segment_crcs()


@given(trees(), st.sampled_from([1, 7, 64, 1000]), st.integers(0, 2**32), st.data())
@settings(max_examples=75)
def test_a_piece_is_composed_of_the_segments_in_it(
    tree: object, granule_bytes: int, seed: int, draw: st.DataObject
) -> None:
    layout = plan(tree)
    data = noise(layout, seed)
    segments = segments_of(layout, granule_bytes)
    cuts = draw.draw(st.sets(st.integers(0, segments.granule_count), max_size=9))
    borders = np.array(sorted({0, segments.granule_count, *cuts}), np.int64)
    runs = segments.runs(borders[:-1], np.diff(borders))
    bounds = np.minimum(borders * granule_bytes, layout.extent_bytes).tolist()
    expected = [crc64nvme(data[low:high]) for low, high in pairwise(bounds)]
    assert runs.compose(crcs_of(layout, data, granule_bytes)).tolist() == expected


@given(trees(), st.sampled_from([7, 64]), st.data())
@settings(max_examples=100)
def test_ranges_may_overlap_and_be_empty(
    tree: object, granule_bytes: int, draw: st.DataObject
) -> None:
    layout = plan(tree)
    data = noise(layout, 5)
    segments = segments_of(layout, granule_bytes)
    places = st.integers(0, segments.count)
    pairs = [sorted(pair) for pair in draw.draw(st.lists(st.tuples(places, places), max_size=9))]
    starts, ends = np.array(pairs, np.int64).reshape(-1, 2).T
    ranges = Ranges.of(segments.bounds, shares_of(segments.bounds), starts, ends)
    bounds = segments.bounds.tolist()
    composed = ranges.compose(crcs_of(layout, data, granule_bytes)).tolist()
    for (start, end), crc in zip(pairs, composed, strict=True):
        if start != end:
            assert crc == crc64nvme(data[bounds[start] : bounds[end]])


def test_of_a_short_last_granule_and_large_leaves() -> None:
    layout = plan([torch.empty(3_000_001, dtype=torch.uint8), torch.empty(70_000)])
    data = noise(layout, 1)
    segments = segments_of(layout, 1 << 20)
    firsts = np.array([0, 1, 2, 0], np.int64)
    counts = np.array([1, 1, segments.granule_count - 2, segments.granule_count], np.int64)
    crcs = segments.runs(firsts, counts).compose(crcs_of(layout, data, 1 << 20))
    for first, count, crc in zip(firsts.tolist(), counts.tolist(), crcs.tolist(), strict=True):
        assert crc == crc64nvme(data[first << 20 : (first + count) << 20])
