"""CRC-64 kernel: its tables, its literals and its arithmetic, without a GPU."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from awscrt.checksums import crc64nvme
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.cuda.emulation import SOURCE, carries, crcs_without_constants
from worldline.cuda import crc64
from worldline.errors import InvalidInput
from worldline.state.gf2 import crcs_of_zeros, power_of_x
from worldline.state.layout import flat_layout
from worldline.state.segments import Segments, segments_of


def segments_at(bounds: list[int]) -> Segments:
    none = np.zeros(0, np.int64)
    return Segments(1 << 20, np.array(sorted(bounds), np.int64), none, none, none)


def reversed_bits(value: int) -> int:
    return int(f"{value:064b}"[::-1], 2)


def test_the_literals_of_the_source_are_powers_of_y() -> None:
    # P(y) has the coefficients of P(x), so its powers are those of x.
    assert carries() == [reversed_bits(power_of_x(64 + power)) for power in range(8)]
    assert "kPolynomial = 0x9A6C9329AC4BC9B5ull" in SOURCE


def test_the_tables_have_the_layout_of_the_source() -> None:
    assert crc64.TABLES_DTYPE.fields["weights"][1] == 16 * 32 * 4 * 32
    assert crc64.MATRIX_BYTES == 16 * 32 * 4 * 32 + 8 * 4 * 4 * 32
    for name, literal in (
        ("gaps", "kRowBytes"),
        ("near_blocks", "256"),
        ("far_blocks", "2049"),
    ):
        assert f"u64 {name}[{literal}];" in SOURCE
    assert crc64.tables()["gaps"].shape == (1, 128)
    assert crc64.tables()["far_blocks"].shape == (1, 2049)


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, list[int], int, int]:
    """Size, bounds, address and warps."""
    size_bytes = draw(st.one_of(st.integers(1, 300), st.integers(1, 70_000)))
    inner = draw(st.lists(st.integers(0, size_bytes), max_size=6))
    dense = draw(st.integers(0, min(40, size_bytes)))
    bounds = {0, size_bytes, *inner, *range(dense)}
    return size_bytes, sorted(bounds), draw(st.integers(0, 300)), draw(st.integers(1, 7))


@given(cases(), st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_the_kernels_arithmetic_gives_the_crc(
    case: tuple[int, list[int], int, int], source: random.Random
) -> None:
    size_bytes, bounds, origin, warps = case
    data = source.randbytes(size_bytes)
    segments = segments_at(bounds)
    begin = source.randrange(segments.count)
    end = source.randint(begin + 1, segments.count)
    units = crc64.units_of(segments, origin)
    got = crcs_without_constants(data, origin, segments.bounds, units, warps, begin, end)
    constants = crcs_of_zeros(np.diff(segments.bounds)).tolist()
    for index, (low, high) in enumerate(pairwise(bounds)):
        if begin <= index < end:
            assert got[index] ^ constants[index] == crc64nvme(data[low:high])
        else:
            assert got[index] == 0


@given(st.integers(0, 1 << 44), st.integers(1, 1 << 21), st.integers(0, 1 << 22))
def test_blocks_cover_a_segment_to_the_end(origin: int, size_bytes: int, start: int) -> None:
    bounds = [0, start, start + size_bytes] if start else [0, size_bytes]
    units = crc64.units_of(segments_at(bounds), origin).tolist()
    blocks = units[-1] - units[-2] - 1
    first, last = origin + bounds[-2], origin + bounds[-1]
    end = -(-last // 128) * 128
    assert end - blocks * crc64.BLOCK_BYTES <= first
    assert end - (blocks - 1) * crc64.BLOCK_BYTES > first // 128 * 128
    assert end - last < len(crc64.tables()["gaps"][0])


def test_the_largest_granule_has_factors_for_all_its_blocks() -> None:
    segments = segments_of(flat_layout("probe", 1 << 33), (1 << 32) - 1)
    units = crc64.units_of(segments, 127)
    assert int(np.diff(units).max()) // 256 < crc64.tables()["far_blocks"].size
    far = crc64.tables()["far_blocks"][0]
    for blocks in (1, 3, 2048):
        assert int(far[blocks]) == power_of_x(8 * 8192 * 256 * blocks)


def test_an_extent_beyond_the_counters_is_refused() -> None:
    with pytest.raises(InvalidInput):
        crc64.units_of(segments_at([0, 1 << 46]), 0)
