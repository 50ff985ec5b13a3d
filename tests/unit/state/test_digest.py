"""Digests: the algorithm, its composition, and that every flipped bit is found where it is."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from awscrt.checksums import crc64nvme
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.state.strategies import trees
from worldline.errors import InvalidInput, InvariantBroken
from worldline.state.digest import Digester, compare, crc64, digest_slot
from worldline.state.layout import Layout, flat_layout
from worldline.state.manifest import Digests
from worldline.state.topology import scalars_encoding
from worldline.state.tree import TensorSpec, pack, plan


def reference_crc(data: bytes) -> int:
    """CRC-64/NVME a bit at a time, from the specification's parameters."""
    crc = 2**64 - 1
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x9A6C9329AC4BC9B5 if crc & 1 else 0)
    return crc ^ (2**64 - 1)


def test_the_algorithm_is_crc_64_nvme() -> None:
    assert crc64(b"123456789") == 0xAE8B14860A799888
    assert crc64(b"") == 0


@given(st.binary(max_size=80))
def test_the_library_agrees_with_the_specification(data: bytes) -> None:
    assert crc64(memoryview(data)) == reference_crc(data)


def slot_of(tree: object) -> tuple[Layout, bytearray]:
    layout = plan(tree)
    slot = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    layout = pack(tree, layout, slot)
    return layout, bytearray(slot.numpy().tobytes())


def naive(layout: Layout, data: bytes, granule_bytes: int) -> Digests:
    """Each digest from its own bytes; nothing composed."""
    return Digests(
        algorithm="crc64nvme",
        granule_bytes=granule_bytes,
        granules=tuple(
            crc64nvme(data[at : at + granule_bytes]) for at in range(0, len(data), granule_bytes)
        ),
        leaves=tuple(
            crc64nvme(data[leaf.offset_bytes : leaf.end_bytes]) for leaf in layout.tensors
        ),
        whole=crc64nvme(layout.topology_hash + scalars_encoding(layout.scalars) + data),
    )


@given(trees(), st.sampled_from([1, 7, 16, 64, 1000]), st.integers(1, 3))
@settings(max_examples=75, deadline=None)
def test_composition_equals_reading_each_part(
    tree: object, granule_bytes: int, threads: int
) -> None:
    layout, data = slot_of(tree)
    digests = digest_slot(layout, memoryview(data), granule_bytes, threads)
    assert digests == naive(layout, bytes(data), granule_bytes)


@given(trees(), st.sampled_from([8, 64, 1000]), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_runs_may_come_in_any_order(tree: object, granule_bytes: int, order: random.Random) -> None:
    layout, data = slot_of(tree)
    digester = Digester(layout, granule_bytes)
    runs = [
        (first, min(3, digester.granule_count - first))
        for first in range(0, digester.granule_count, 3)
    ]
    order.shuffle(runs)
    for first, count in runs:
        piece = data[first * granule_bytes : (first + count) * granule_bytes]
        digester.update(first, count, memoryview(piece))
    assert digester.digests() == naive(layout, bytes(data), granule_bytes)


@given(trees(), st.sampled_from([16, 64]), st.data())
@settings(max_examples=75, deadline=None)
def test_any_flipped_bit_is_found_in_its_granule_and_leaf(
    tree: object, granule_bytes: int, draw: st.DataObject
) -> None:
    layout, data = slot_of(tree)
    if not data:
        return
    expected = digest_slot(layout, memoryview(data), granule_bytes)
    assert compare(layout, expected, expected) is None
    at = draw.draw(st.integers(0, len(data) - 1))
    data[at] ^= 1 << draw.draw(st.integers(0, 7))
    found = compare(layout, expected, digest_slot(layout, memoryview(data), granule_bytes))
    assert found is not None
    assert found.granule == at // granule_bytes
    covering = [leaf for leaf in layout.tensors if leaf.offset_bytes <= at < leaf.end_bytes]
    first = min(covering, key=lambda leaf: (leaf.offset_bytes, leaf.end_bytes), default=None)
    assert found.leaf == (first.path if first else None)
    assert (found.leaf or "no leaf") in found.message


def test_every_bit_of_a_small_slot_is_found() -> None:
    layout, data = slot_of({"a": torch.arange(3), "b": [torch.tensor(1.5), torch.ones(5)]})
    expected = digest_slot(layout, memoryview(data), 8)
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        found = compare(layout, expected, digest_slot(layout, memoryview(data), 8))
        assert found is not None
        assert found.granule == bit // 64
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize(
    "other",
    [
        {"k": torch.zeros(4, dtype=torch.float32), "n": 1},
        {"k": torch.zeros(2, 2, dtype=torch.int32), "n": 1},
        {"k": torch.zeros(4, dtype=torch.int32).view(2, 2).t(), "n": 1},
        {"v": torch.zeros(4, dtype=torch.int32), "n": 1},
        {"n": 1, "k": torch.zeros(4, dtype=torch.int32)},
        {"k": torch.zeros(4, dtype=torch.int32), "n": 2},
        {"k": torch.zeros(4, dtype=torch.int32), "n": True},
        {"k": torch.zeros(4, dtype=torch.int32), "n": 1.0},
        {"k": torch.zeros(4, dtype=torch.int32), "m": 1},
        {"k": torch.zeros(4, dtype=torch.int32)},
        ({"k": torch.zeros(4, dtype=torch.int32)}, 1),
        {"k": torch.zeros(2, dtype=torch.int32), "l": torch.zeros(2, dtype=torch.int32), "n": 1},
    ],
)
def test_equal_bytes_of_another_meaning_are_not_equal(other: object) -> None:
    layout, data = slot_of({"k": torch.zeros(4, dtype=torch.int32), "n": 1})
    other_layout, other_data = slot_of(other)
    assert data == other_data
    mine = digest_slot(layout, memoryview(data))
    theirs = digest_slot(other_layout, memoryview(other_data))
    assert mine.granules == theirs.granules
    assert mine.whole != theirs.whole


def test_a_changed_scalar_is_a_difference_of_meaning() -> None:
    layout, data = slot_of({"k": torch.zeros(4), "n": 0.0})
    expected = digest_slot(layout, memoryview(data))
    actual = digest_slot(layout.with_scalars({"n": -0.0}), memoryview(data))
    found = compare(layout, expected, actual)
    assert found is not None
    assert (found.leaf, found.granule) == (None, None)


def test_padding_belongs_to_no_leaf() -> None:
    layout = plan([TensorSpec(torch.uint8, (300,)), TensorSpec(torch.uint8, (300,))])
    data = bytearray(layout.extent_bytes)
    expected = digest_slot(layout, memoryview(data), 256)
    data[400] = 1
    found = compare(layout, expected, digest_slot(layout, memoryview(data), 256))
    assert found is not None
    assert (found.leaf, found.granule) == (None, 1)
    data[700] = 1  # a leaf differs as well, but later
    found = compare(layout, expected, digest_slot(layout, memoryview(data), 256))
    assert found is not None
    assert (found.leaf, found.granule) == (None, 1)


LAYOUT = plan({"a": TensorSpec(torch.uint8, (100,)), "b": TensorSpec(torch.int64, (4,))})
GOOD = digest_slot(LAYOUT, memoryview(bytes(LAYOUT.extent_bytes)), 64)


@pytest.mark.parametrize(
    "bad",
    [
        replace(GOOD, algorithm=""),
        replace(GOOD, algorithm="crc32c"),
        replace(GOOD, algorithm="CRC64NVME"),
        replace(GOOD, granules=()),
        replace(GOOD, granules=GOOD.granules[:-1]),
        replace(GOOD, granules=(*GOOD.granules, 0)),
        replace(GOOD, leaves=()),
        replace(GOOD, leaves=GOOD.leaves[:-1]),
        replace(GOOD, granule_bytes=0),
        replace(GOOD, granule_bytes=-64),
        replace(GOOD, granule_bytes=32),
        replace(GOOD, whole=-1),
        replace(GOOD, whole=2**64),
        None,
    ],
)
def test_what_cannot_be_compared_is_refused_and_never_equal(bad: Digests) -> None:
    for pair in ((GOOD, bad), (bad, GOOD), (bad, bad)):
        with pytest.raises(InvalidInput):
            compare(LAYOUT, *pair)


def test_granules_of_two_sizes_cannot_be_compared() -> None:
    data = memoryview(bytes(LAYOUT.extent_bytes))
    with pytest.raises(InvalidInput):
        compare(LAYOUT, GOOD, digest_slot(LAYOUT, data, 32))


def test_contradicting_digests_name_the_leaf() -> None:
    found = compare(LAYOUT, GOOD, replace(GOOD, leaves=(GOOD.leaves[0], 1)))
    assert found is not None
    assert (found.leaf, found.granule) == ("b", None)


def test_a_granule_that_was_not_read_has_no_digest() -> None:
    digester = Digester(LAYOUT, 64)
    digester.update(0, 1, memoryview(bytes(64)))
    with pytest.raises(InvariantBroken) as caught:
        digester.digests()
    assert caught.value.granule == 1


@pytest.mark.parametrize(
    ("first", "count", "size_bytes"),
    [(0, 1, 63), (0, 1, 65), (0, 2, 64), (0, 4, 256), (3, 1, 64), (-1, 1, 64), (0, -1, 0)],
)
def test_a_run_is_exactly_its_bytes(first: int, count: int, size_bytes: int) -> None:
    with pytest.raises(InvalidInput):
        Digester(LAYOUT, 64).update(first, count, memoryview(bytes(size_bytes)))


def test_slots_that_cannot_be_read_are_refused() -> None:
    long = memoryview(bytes(2 * LAYOUT.extent_bytes))
    assert digest_slot(LAYOUT, long, 64) == GOOD
    for view in (long[: LAYOUT.extent_bytes - 1], long[::2]):
        with pytest.raises(InvalidInput):
            digest_slot(LAYOUT, view, 64)
    for granule_bytes, threads in ((0, 1), (-1, 1), (2**32, 1), (64, 0)):
        with pytest.raises(InvalidInput):
            digest_slot(LAYOUT, long, granule_bytes, threads)


@given(trees(), st.sampled_from([1, 7, 64, 1000]), st.data())
def test_zeros_that_somebody_has_read_need_no_reading(
    tree: object, granule_bytes: int, draw: st.DataObject
) -> None:
    layout, data = slot_of(tree)
    digester = Digester(layout, granule_bytes)
    count = digester.granule_count
    first = draw.draw(st.integers(0, count))
    size = draw.draw(st.integers(0, count - first))
    start, end = first * granule_bytes, min((first + size) * granule_bytes, len(data))
    data[start:end] = bytes(max(0, end - start))
    digester.update_zeros(first, size)
    for granule in (*range(first), *range(first + size, count)):
        at = granule * granule_bytes
        digester.update(granule, 1, memoryview(data)[at : at + granule_bytes])
    assert digester.digests() == naive(layout, data, granule_bytes)
    with pytest.raises(InvalidInput):
        digester.update_zeros(count, 1)


def test_disjoint_runs_digest_in_parallel() -> None:
    layout = flat_layout("probe", 1 << 20)
    data = random.Random(1).randbytes(1 << 20)
    digester = Digester(layout, 1 << 12)
    gate = threading.Barrier(4, timeout=60)

    def read(quarter: int) -> None:
        gate.wait()
        for granule in range(quarter * 64, quarter * 64 + 64):
            piece = data[granule << 12 : (granule + 1) << 12]
            digester.update(granule, 1, memoryview(piece))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, range(4)))
    assert digester.digests() == naive(layout, data, 1 << 12)
    assert digest_slot(layout, memoryview(data), 1 << 12, threads=4) == digester.digests()
