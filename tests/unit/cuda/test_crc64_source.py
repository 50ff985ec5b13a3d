"""CRC-64 kernel: the source as it is, lane by lane on the host, against the library."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from awscrt.checksums import crc64nvme

from tests.unit.cuda.host import run
from worldline.cuda import crc64
from worldline.state.gf2 import crcs_of_zeros
from worldline.state.segments import Segments


def kernel_crcs(
    folder: Path, data: bytes, bounds: list[int], origin: int, warps: int, begin: int, end: int
) -> list[int]:
    none = np.zeros(0, np.int64)
    segments = Segments(1 << 20, np.array(bounds, np.int64), none, none, none)
    (folder / "data").write_bytes(data)
    (folder / "bounds").write_bytes(segments.bounds.tobytes())
    (folder / "units").write_bytes(crc64.units_of(segments, origin).tobytes())
    (folder / "tables").write_bytes(crc64.tables().tobytes())
    run("crc64", folder, origin, warps, begin, end)
    crcs = np.frombuffer((folder / "crcs").read_bytes(), np.uint64)
    return (crcs ^ crcs_of_zeros(np.diff(segments.bounds))).tolist()


@pytest.mark.parametrize("seed", range(24))
def test_any_segments_at_any_address(seed: int, tmp_path: Path) -> None:
    source = random.Random(seed)
    size_bytes = source.randint(1, source.choice([4, 300, 9_000, 60_000, 150_000]))
    dense = source.choice([0, 0, 45])
    inner = [source.randint(0, size_bytes) for _ in range(source.randint(0, 8))]
    bounds = sorted({0, size_bytes, *inner, *range(min(dense, size_bytes))})
    data = source.randbytes(size_bytes)
    begin = source.choice([0, source.randrange(len(bounds) - 1)])
    end = source.choice([len(bounds) - 1, source.randint(begin + 1, len(bounds) - 1)])
    got = kernel_crcs(
        tmp_path, data, bounds, source.randrange(256), source.randint(1, 8), begin, end
    )
    wanted = [crc64nvme(data[low:high]) for low, high in pairwise(bounds)]
    assert got[begin:end] == wanted[begin:end]


def test_one_warp_delivers_more_parts_than_it_has_lanes(tmp_path: Path) -> None:
    bounds = [*range(100), 5000]
    data = random.Random(1).randbytes(5000)
    got = kernel_crcs(tmp_path, data, bounds, 5, 1, 0, 100)
    assert got == [crc64nvme(data[low:high]) for low, high in pairwise(bounds)]


def test_a_segment_of_more_blocks_than_the_near_table_holds(tmp_path: Path) -> None:
    data = random.Random(2).randbytes(260 * crc64.BLOCK_BYTES + 77)
    got = kernel_crcs(tmp_path, data, [0, len(data)], 3, 5, 0, 1)
    assert got == [crc64nvme(data)]
