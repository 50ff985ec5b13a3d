"""Emulation: what `crc64.cu` does, in numpy, from the very tables that the kernel reads."""

from __future__ import annotations

import re
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from worldline.cuda.crc64 import BLOCK_BYTES, LANES, ROW_BYTES, ROWS, tables
from worldline.state.gf2 import multiply

SOURCE = files("worldline.cuda").joinpath("crc64.cu").read_text()
Words = npt.NDArray[np.uint32]


def carries() -> list[int]:
    """The literals of the source: y^64 and on, modulo P(y); bit i stands for y^i."""
    found = re.search(r"u64 carries\[kGroup\] = \{(.*?)\};", SOURCE, re.DOTALL)
    assert found is not None
    return [int(item.strip().removesuffix("ull"), 16) for item in found[1].split(",")]


def fold(state: Words, rows: Words) -> Words:
    """State (by power of y) and eight rows (by address), 32 words each, to the next state."""
    shifted = np.concatenate((rows[::-1], state[:-8]))
    for power, carry in enumerate(carries()):
        for place in range(ROWS):
            if carry >> place & 1:
                shifted[place] ^= state[ROWS - 8 + power]
    return shifted


def remainder(state: Words) -> int:
    """Of a block modulo P(x): products of bits lane by lane as mma.m16n8k256 defines them."""
    table = tables()[0]
    sums = np.zeros((4, 16, 8), np.int64)
    for step in range(32):
        # Right side: column c holds the words of lanes 4c to 4c + 3, of two rows.
        right = state[2 * step : 2 * step + 2].reshape(2, 8, 4)
        for tile in range(4):
            registers = table["fragments"][step, tile].reshape(8, 4, 4)
            for register in range(4):
                upper = 8 * (register % 2)
                left = registers[:, :, register]
                both = left[:, None, :] & right[register // 2][None, :, :]
                counts = np.bitwise_count(both).sum(axis=2, dtype=np.int64)
                sums[tile, upper : upper + 8] += counts
    value = 0
    for tile in range(4):
        for index in range(4):
            for lane in range(LANES):
                row, column = lane // 4 + 8 * (index // 2), 2 * (lane % 4) + index % 2
                if sums[tile, row, column] & 1:
                    value ^= int(table["weights"][tile, index, lane])
    return value


def crcs_without_constants(
    data: bytes,
    origin: int,
    bounds: npt.NDArray[np.int64],
    units: npt.NDArray[np.uint32],
    warps: int,
    begin: int,
    end: int,
) -> list[int]:
    """The kernel's result for data that lies at the address `origin`."""
    table = tables()[0]
    crcs = [0] * (len(bounds) - 1)
    first, total = int(units[begin]), int(units[end]) - int(units[begin])
    for warp in range(warps):
        low, high = first + total * warp // warps, first + total * (warp + 1) // warps
        for segment in range(begin, end):
            start, stop = int(units[segment]) + 1, int(units[segment + 1])
            from_unit, to_unit = max(low, start), min(high, stop)
            if from_unit >= to_unit:
                continue
            span = (int(bounds[segment]), int(bounds[segment + 1]))
            padded = -(-(origin + span[1]) // ROW_BYTES) * ROW_BYTES
            at = padded - (stop - from_unit) * BLOCK_BYTES - origin
            value = _part(data, span, at, to_unit - from_unit)
            behind = stop - to_unit
            for factor in (
                table["near_blocks"][behind % 256],
                table["far_blocks"][behind // 256],
                table["gaps"][padded - origin - span[1]],
            ):
                value = multiply(value, int(factor))
            crcs[segment] ^= value
    return crcs


def _part(data: bytes, span: tuple[int, int], at: int, blocks: int) -> int:
    size_bytes = blocks * BLOCK_BYTES
    low, high = max(span[0], at), min(span[1], at + size_bytes)
    padded = bytes(low - at) + data[low:high] + bytes(at + size_bytes - high)
    words = np.frombuffer(padded, np.uint32).reshape(-1, LANES)
    state = words[:ROWS][::-1].copy()
    for group in words[ROWS:].reshape(-1, 8, LANES):
        state = fold(state, group)
    return remainder(state)
