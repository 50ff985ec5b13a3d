"""GF(2): arithmetic modulo the polynomial of CRC-64/NVME, for single values and for arrays.

A CRC is a remainder: read the message as a polynomial over GF(2), whose coefficients are bits and
whose addition is xor, and divide by a fixed polynomial P of degree 64. A 64-bit value here is a
polynomial of degree below 64, *reflected* as CRC-64/NVME has it: bit 63 is the coefficient of x^0
and bit 0 that of x^63. Bytes behind a message multiply its CRC by x^8 each, so

    crc(a + b) = crc(a) * x^(8 * len(b)) + crc(b)

holds for the CRC of the standard too (its initial value and final xor cancel), and every way of
putting CRCs together, or of taking one out again, is a multiplication by a power of x. P has the
term x^0, so x has an inverse and the power may be negative.

The polynomial is that of the NVM Express specification, 0xAD93D23594C93659, reflected.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

Uint64s = npt.NDArray[np.uint64]

#: P without its highest term, reflected.
POLYNOMIAL = 0x9A6C9329AC4BC9B5
#: The polynomial 1.
ONE = 1 << 63
#: All coefficients one: initial value and final xor of CRC-64/NVME.
ONES = (1 << 64) - 1

_BITS = 64
#: Rows of a table that are worked on at once: the intermediate values then stay in the L2 cache.
_ROWS = 8
#: Exponents of arrays are cut into digits of this many bits.
_DIGIT_BITS = 8


def times_x(value: int) -> int:
    """The value times x."""
    return (value >> 1) ^ (POLYNOMIAL if value & 1 else 0)


def multiply(one: int, other: int) -> int:
    """The product of two values."""
    product = 0
    for bit in range(_BITS - 1, -1, -1):
        if other >> bit & 1:
            product ^= one
        one = times_x(one)
    return product


def power_of_x(exponent: int) -> int:
    """x to this power; the exponent counts bits and may be negative or huge."""
    power = ONE
    for index in range(abs(exponent).bit_length()):
        if abs(exponent) >> index & 1:
            power = multiply(power, _square(index, exponent > 0))
    return power


@cache
def _square(index: int, forward: bool) -> int:
    """x, or its inverse, squared so many times."""
    if index == 0:
        return times_x(ONE) if forward else _INVERSE_OF_X
    below = _square(index - 1, forward)
    return multiply(below, below)


#: What times_x() turns into ONE.
_INVERSE_OF_X = ((ONE ^ POLYNOMIAL) << 1 | 1) & ONES


def crc_of_zeros(size_bytes: int) -> int:
    """CRC-64/NVME of so many zero bytes, which is all that its two constants add to a CRC."""
    return multiply(ONES, power_of_x(8 * size_bytes)) ^ ONES


def multiply_each(ones: Uint64s, others: Uint64s) -> Uint64s:
    """Products of two arrays element by element, with numpy's broadcasting."""
    powers, values = np.broadcast_arrays(ones, others)
    powers = powers.copy()
    product = np.zeros_like(powers)
    for exponent in range(_BITS):
        product ^= powers & _spread(values << np.uint64(exponent))
        powers = (powers >> np.uint64(1)) ^ (
            np.uint64(POLYNOMIAL) & _spread(powers << np.uint64(_BITS - 1))
        )
    return product


def powers_of_x(exponents: npt.NDArray[np.int64]) -> Uint64s:
    """x to each of these powers, which may be negative."""
    return _powers(exponents, 1)


def powers_of_x8(exponents: npt.NDArray[np.int64]) -> Uint64s:
    """x^8 to each of these powers: the factors of distances in bytes, which may be negative."""
    return _powers(exponents, 8)


def make_tables(distance_bytes: int) -> None:
    """Make what `powers_of_x8` looks up for distances up to that, either way.

    It takes tens of milliseconds, once a process: whoever knows that digests will be composed has
    it behind it before somebody waits.
    """
    powers_of_x8(np.array([distance_bytes, -distance_bytes], np.int64))


def _powers(exponents: npt.NDArray[np.int64], unit_bits: int) -> Uint64s:
    magnitudes = np.abs(exponents).astype(np.uint64)
    powers = np.full(exponents.shape, ONE, np.uint64)
    backward = exponents < 0
    largest = int(magnitudes.max(initial=0))
    for index in range(-(-largest.bit_length() // _DIGIT_BITS)):
        digits = (magnitudes >> np.uint64(_DIGIT_BITS * index)) & np.uint64((1 << _DIGIT_BITS) - 1)
        factors = _digit_powers(index, unit_bits)[digits]
        if backward.any():
            factors = np.where(backward, _digit_powers(index, -unit_bits)[digits], factors)
        powers = multiply_each(powers, factors)
    return powers


@cache
def _digit_powers(index: int, unit_bits: int) -> Uint64s:
    """x^unit_bits to each value that the digit of this index can have."""
    powers = np.full(1 << _DIGIT_BITS, ONE, np.uint64)
    for bit in range(_DIGIT_BITS):
        factor = power_of_x(unit_bits << _DIGIT_BITS * index + bit)
        half = 1 << bit
        powers[half : 2 * half] = multiply_each(powers[:half], _array(factor))
    powers.setflags(write=False)
    return powers


def crcs_of_zeros(sizes_bytes: npt.NDArray[np.int64]) -> Uint64s:
    """`crc_of_zeros` of each of these sizes."""
    ones = _array(ONES)
    return multiply_each(powers_of_x8(sizes_bytes), ones) ^ ones


class FixedFactors:
    """Multiplies arrays by the same factors again and again, three times faster than from scratch.

    It keeps every factor times x^0 to x^63: 512 bytes a factor.
    """

    def __init__(self, factors: Uint64s) -> None:
        rows = np.empty((_BITS, factors.size), np.uint64)
        rows[0] = factors
        for exponent in range(1, _BITS):
            below = rows[exponent - 1]
            carry = np.uint64(POLYNOMIAL) & _spread(below << np.uint64(_BITS - 1))
            rows[exponent] = (below >> np.uint64(1)) ^ carry
        self._rows = rows

    def multiply(self, values: Uint64s) -> Uint64s:
        """Each value times the factor at its place."""
        product = np.zeros_like(values)
        for first in range(0, _BITS, _ROWS):
            terms = _spread(values << _EXPONENTS[first : first + _ROWS])
            terms &= self._rows[first : first + _ROWS]
            product ^= np.bitwise_xor.reduce(terms, axis=0)
        return product


#: One per row of a table: the shift that brings the coefficient of x^row to the top.
_EXPONENTS = np.arange(_BITS, dtype=np.uint64)[:, None]


def _array(value: int) -> Uint64s:
    return np.array(value, np.uint64)


def _spread(values: Uint64s) -> Uint64s:
    """All bits of each value set where its top bit is, none elsewhere."""
    signed = values.view(np.int64)
    return (signed >> np.int64(_BITS - 1)).view(np.uint64)
