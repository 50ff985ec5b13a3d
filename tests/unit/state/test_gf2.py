"""GF(2): the arithmetic behind every composed digest, against the library that ships CRCs."""

from __future__ import annotations

import numpy as np
from awscrt.checksums import combine_crc64nvme, crc64nvme
from hypothesis import given
from hypothesis import strategies as st

from worldline.state import gf2
from worldline.state.gf2 import (
    ONE,
    FixedFactors,
    crc_of_zeros,
    crcs_of_zeros,
    multiply,
    multiply_each,
    power_of_x,
    powers_of_x8,
    times_x,
)

values = st.integers(0, 2**64 - 1)
exponents = st.integers(-(2**66), 2**66)
byte_exponents = st.one_of(st.integers(-300, 300), st.integers(-(2**63) + 1, 2**63 - 1))


def uint64s(items: list[int]) -> np.ndarray:
    return np.array(items, np.uint64)


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_a_crc_moves_by_powers_of_x(one: bytes, other: bytes) -> None:
    shifted = multiply(crc64nvme(one), power_of_x(8 * len(other)))
    assert shifted ^ crc64nvme(other) == crc64nvme(one + other)


@given(values, values, st.integers(1, 2**62))
def test_composition_is_that_of_the_library(one: int, other: int, size_bytes: int) -> None:
    composed = multiply(one, power_of_x(8 * size_bytes)) ^ other
    assert composed == combine_crc64nvme(one, other, size_bytes)


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_what_was_appended_can_be_taken_away(one: bytes, other: bytes) -> None:
    tail = crc64nvme(one + other) ^ crc64nvme(other)
    assert multiply(tail, power_of_x(-8 * len(other))) == crc64nvme(one)


@given(st.integers(0, 5000))
def test_the_crc_of_zeros(size_bytes: int) -> None:
    assert crc_of_zeros(size_bytes) == crc64nvme(bytes(size_bytes))


@given(values, values, values)
def test_multiplication_is_that_of_a_ring(one: int, other: int, third: int) -> None:
    assert multiply(one, ONE) == one
    assert multiply(one, other) == multiply(other, one)
    assert multiply(one, multiply(other, third)) == multiply(multiply(one, other), third)
    assert multiply(one, other ^ third) == multiply(one, other) ^ multiply(one, third)


@given(exponents, exponents)
def test_powers_add_up(one: int, other: int) -> None:
    assert multiply(power_of_x(one), power_of_x(other)) == power_of_x(one + other)
    assert power_of_x(one + 1) == times_x(power_of_x(one))


@given(st.lists(st.tuples(values, values), max_size=20))
def test_arrays_multiply_as_single_values_do(pairs: list[tuple[int, int]]) -> None:
    ones, others = uint64s([one for one, _ in pairs]), uint64s([other for _, other in pairs])
    expected = [multiply(one, other) for one, other in pairs]
    assert multiply_each(ones, others).tolist() == expected
    assert FixedFactors(ones).multiply(others).tolist() == expected


@given(st.lists(values, max_size=5), st.lists(values, max_size=5))
def test_arrays_broadcast(rows: list[int], columns: list[int]) -> None:
    product = multiply_each(uint64s(rows)[:, None], uint64s(columns))
    assert product.tolist() == [[multiply(row, column) for column in columns] for row in rows]


@given(st.lists(byte_exponents, max_size=20))
def test_arrays_of_powers(items: list[int]) -> None:
    powers = powers_of_x8(np.array(items, np.int64))
    assert powers.tolist() == [power_of_x(8 * item) for item in items]


@given(st.lists(st.integers(0, 2**63 - 1), max_size=20))
def test_arrays_of_crcs_of_zeros(sizes: list[int]) -> None:
    assert crcs_of_zeros(np.array(sizes, np.int64)).tolist() == [crc_of_zeros(n) for n in sizes]


def test_what_is_made_before_need_not_be_made_when_it_is_needed() -> None:
    gf2._digit_powers.cache_clear()
    gf2.make_tables(1 << 30)
    made = gf2._digit_powers.cache_info().misses
    gf2.powers_of_x8(np.array([0, 1, -1, 4096, 1 << 20, (1 << 30) - 1, 1 - (1 << 30)], np.int64))
    assert gf2._digit_powers.cache_info().misses == made > 0
