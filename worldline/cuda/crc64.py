"""CRC-64 on a GPU: the mathematics of `crc64.cu`, and the tables that it reads. No device is used.

A CRC is the remainder of the message, a polynomial over GF(2), modulo P of degree 64 (see `gf2`).
Division looks sequential, eight bits at a time through a table of 256 entries; such a kernel is
bound by the conflicts of its look-ups in shared memory. Here no byte is ever looked up.

**Folding.** Cut the message into rows of 128 bytes, a 32-bit word for each lane of a warp. With
y = x^1024 (the bits of a row) the message is the sum of row_i * y^i. Squaring is linear over
GF(2), so P(x)^2 = P(x^2), and ten times over P(x)^1024 = P(y). What is divisible by P(y) is
divisible by P(x): the message may be reduced modulo P(y) first. P(y) has the coefficients of P,
each 0 or 1, so this reduction does not touch the bits *within* a row: y^64 is the sum of some y^i
with i < 64, and a row at y^64 is replaced by xoring that row, as a whole, to those places. Each
lane does it for its own word, all 32 bits at once, without a word to any other lane. A state of 64
rows lies in 64 registers a lane. Eight rows are appended at once: eight rows overflow, every
coefficient receives the xor of some of them, and all subsets of twice four of them are made
beforehand (22 xors), so that one three-input xor each does the rest: 86 instructions for 1024
bytes of a warp. That is less than memory takes to deliver them.

**Finishing.** A *block* of 64 rows, 8 KiB, is left of any length of message. Its remainder modulo
P(x) is linear too, hence a product with a fixed matrix of bits: 64 rows, a column for each bit. It
is done on the tensor cores, which multiply matrices of bits by `and` and count: the parity of the
count is the sum over GF(2). The instruction multiplies 16 x 256 bits (the matrix, in shared
memory) by 256 x 8. The words of lanes 4 c to 4 c + 3 are taken for column c of the right side, so
every lane passes its registers as they are; columns differ by powers of x^128 only. Each lane
then holds parities of bits of the columns' remainders; each stands for a power of x (`weights`),
and the xor of those that are set, over all lanes, is the remainder.

**Placing.** A part of a segment is followed by whole blocks of the same segment and, as rows are
aligned to 128 bytes and the segment is not, by a gap of fewer than 128 bytes that count as zeros.
So the remainder is multiplied by x^(65536 * blocks behind) (`near_blocks`, `far_blocks`) and by
x^(-8 * gap) (`gaps`): x has an inverse. The parts of a segment add up by xor.

Initial value and final xor of the standard add the CRC of as many zero bytes, known beforehand.

Sources: the folding idea is that of carry-less multiplication in Intel's "Fast CRC Computation for
Generic Polynomials Using PCLMULQDQ Instruction" (2009), carried to plain xor by Frobenius; the
layout of the fragments is in the PTX ISA, section "Matrix fragments for mma.m16n8k256".
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from worldline.errors import InvalidInput
from worldline.state.gf2 import Uint64s, multiply_each, powers_of_x, powers_of_x8
from worldline.state.segments import Segments

LANES = 32
ROWS = 64
ROW_BYTES = 4 * LANES
BLOCK_BYTES = ROWS * ROW_BYTES

_STEPS = 32
_TILES = 4
_NEAR_BLOCKS = 256
#: Enough for segments of 2**32 bytes, the largest granule.
_FAR_BLOCKS = 2049
_UNITS_MAX = (1 << 32) - 1

#: `Tables` of the kernel, to the byte.
TABLES_DTYPE = np.dtype(
    [
        ("fragments", "<u4", (_STEPS, _TILES, LANES, 4)),
        ("weights", "<u8", (_TILES, 4, LANES)),
        ("gaps", "<u8", (ROW_BYTES,)),
        ("near_blocks", "<u8", (_NEAR_BLOCKS,)),
        ("far_blocks", "<u8", (_FAR_BLOCKS,)),
    ]
)
#: `Matrix` of the kernel: what each block of threads keeps in shared memory.
MATRIX_BYTES = TABLES_DTYPE.fields["gaps"][1]  # type: ignore[index]


@cache
def tables() -> npt.NDArray[np.void]:
    """The kernel's tables, one element of TABLES_DTYPE; the same for every device and message."""
    out = np.zeros(1, TABLES_DTYPE)
    out["fragments"] = _fragments()
    out["weights"] = _weights()
    out["gaps"] = powers_of_x8(-np.arange(ROW_BYTES))
    out["near_blocks"] = powers_of_x8(BLOCK_BYTES * np.arange(_NEAR_BLOCKS))
    out["far_blocks"] = powers_of_x8(BLOCK_BYTES * _NEAR_BLOCKS * np.arange(_FAR_BLOCKS))
    out.setflags(write=False)
    return out


def units_of(segments: Segments, origin_bytes: int) -> npt.NDArray[np.uint32]:
    """Work before each segment, and after the last: what the kernel shares out evenly.

    A segment costs one unit and one for each of its blocks. `origin_bytes` is the address at which
    the extent begins; only its remainder by the row matters.

    Raises:
        InvalidInput: more than 2**32 - 1 units, an extent of some 35 TB.
    """
    addresses = segments.bounds + origin_bytes % ROW_BYTES
    first_rows = addresses[:-1] // ROW_BYTES
    end_rows = -(-addresses[1:] // ROW_BYTES)
    blocks = -(-(end_rows - first_rows) // ROWS)
    units = np.append(0, np.cumsum(blocks + 1))
    if units[-1] > _UNITS_MAX:
        raise InvalidInput(
            f"an extent of {segments.extent_bytes} bytes is too large", field="layout.extent_bytes"
        )
    return units.astype(np.uint32)


def _fragments() -> npt.NDArray[np.uint32]:
    """The matrix, as the lanes pass it to the tensor cores: step, tile, lane, register."""
    # The remainder of a bit, which is followed by 64 bits that the CRC appends, by whole rows and
    # by up to 127 bits of its column.
    rows = powers_of_x(64 + 8 * ROW_BYTES * np.arange(ROWS))
    bits = multiply_each(rows[:, None], powers_of_x(np.arange(128)))
    step, tile, lane, register = np.ogrid[:_STEPS, :_TILES, :LANES, :4]
    row = 2 * step + register // 2
    result_bit = (16 * tile + lane // 4 + 8 * (register % 2)).astype(np.uint64)
    out = np.zeros((_STEPS, _TILES, LANES, 4), np.uint32)
    for bit in range(32):
        remainders = bits[row, 127 - 32 * (lane % 4) - bit]
        out |= ((remainders >> result_bit & np.uint64(1)) << np.uint64(bit)).astype(np.uint32)
    return out


def _weights() -> Uint64s:
    """What each sum of a lane stands for: tile, sum, lane."""
    tile, index, lane = np.ogrid[:_TILES, :4, :LANES]
    result_bit = 16 * tile + lane // 4 + 8 * (index // 2)
    column = 2 * (lane % 4) + index % 2
    return powers_of_x(63 - result_bit + 128 * (7 - column))
