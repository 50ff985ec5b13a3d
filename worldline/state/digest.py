"""Digest: CRC-64/NVME of a slot, per granule, per leaf and as a whole.

The algorithm is that of the NVM Express specification (polynomial 0xAD93D23594C93659, reflected),
computed by awscrt, which releases the GIL. `whole` is the CRC of the topology hash and the
canonical scalars, continued over the extent: equal bytes under another dtype, shape, order or
scalar are unequal.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from awscrt.checksums import combine_crc64nvme, crc64nvme

from worldline.errors import InvalidInput, InvariantBroken
from worldline.state.difference import Difference, compare
from worldline.state.gf2 import Uint64s
from worldline.state.layout import Layout
from worldline.state.manifest import CRC64NVME, Digests
from worldline.state.segments import Segments, segments_of
from worldline.state.topology import scalars_encoding

__all__ = [
    "GRANULE_BYTES",
    "Difference",
    "Digester",
    "compare",
    "compose",
    "crc64",
    "crcs_of_run",
    "digest_slot",
]

#: Granule that the whole project agrees on, 1 MiB.
GRANULE_BYTES = 1 << 20
#: Granules that one task of `digest_slot` reads: long enough that a task costs nothing.
_RUN_GRANULES = 16


def crc64(data: bytes | bytearray | memoryview) -> int:
    """CRC-64/NVME of these bytes, for anything beside the slot (frames, probes)."""
    value: int = crc64nvme(data)
    return value


def compose(layout: Layout, segment_crcs: Uint64s, granule_bytes: int = GRANULE_BYTES) -> Digests:
    """All digests of a slot from the CRCs of its segments, wherever those were computed.

    `segment_crcs` is what `Digester.segment_crcs` gives, one uint64 per segment of the layout.

    Raises:
        InvalidInput: the array is of another kind or length, or the granule has no valid size.
    """
    segments = segments_of(layout, granule_bytes)
    granules, leaves, extent = segments.composer.compose(segment_crcs)
    header = layout.topology_hash + scalars_encoding(layout.scalars)
    return Digests(
        algorithm=CRC64NVME,
        granule_bytes=granule_bytes,
        granules=tuple(granules.tolist()),
        leaves=tuple(leaves.tolist()),
        whole=combine_crc64nvme(crc64nvme(header), extent, segments.extent_bytes),
    )


def crcs_of_run(segments: Segments, run: range, view: memoryview) -> Uint64s:
    """CRC of each segment of a run of granules; `view` is exactly those bytes, C-contiguous.

    Raises:
        InvalidInput: the view has another size.
    """
    bounds = segments.bounds[run.start : run.stop + 1].tolist()
    start, data = bounds[0], _bytes_of(view)
    if data.nbytes != bounds[-1] - start:
        raise InvalidInput(f"{data.nbytes} bytes for a run of {bounds[-1] - start}", field="view")
    crcs = [crc64nvme(data[low - start : high - start]) for low, high in pairwise(bounds)]
    return np.array(crcs, np.uint64)


class Digester:
    """Digests a slot run by run, in any order, while other runs still move.

    `update` may be called from several threads for disjoint runs. A run given twice counts with
    its last bytes.
    """

    def __init__(self, layout: Layout, granule_bytes: int = GRANULE_BYTES) -> None:
        self._layout = layout
        self._segments = segments_of(layout, granule_bytes)
        self._crcs = np.zeros(self._segments.count, np.uint64)
        self._was_read = np.zeros(self._segments.count, np.bool_)

    @property
    def granule_count(self) -> int:
        """Granules of the layout's extent."""
        return self._segments.granule_count

    def update(self, first_granule: int, granule_count: int, view: memoryview) -> None:
        """Digest a run of granules; `view` is exactly those bytes, C-contiguous.

        Raises:
            InvalidInput: the run lies outside the extent, or the view has another size.
        """
        run = self._segments.run(first_granule, granule_count)
        self._crcs[run.start : run.stop] = crcs_of_run(self._segments, run, view)
        self._was_read[run.start : run.stop] = True

    def update_zeros(self, first_granule: int, granule_count: int) -> None:
        """As `update` with zeros, by whoever has read that all bytes of the run are.

        Raises:
            InvalidInput: the run lies outside the extent.
        """
        run = self._segments.run(first_granule, granule_count)
        self._crcs[run.start : run.stop] = self._segments.zeros[run.start : run.stop]
        self._was_read[run.start : run.stop] = True

    def segment_crcs(self) -> Uint64s:
        """CRC of every segment of the layout (see `segments`), once every granule was read.

        This is all that two ends need to compare (`difference.compare_segments`), and what
        `compose` makes every digest from.

        Raises:
            InvariantBroken: a granule was never given to `update`.
        """
        if not self._was_read.all():
            at_bytes = int(self._segments.bounds[np.argmin(self._was_read)])
            granule = at_bytes // self._segments.granule_bytes
            raise InvariantBroken(f"granule {granule} was never digested", granule=granule)
        return self._crcs.copy()

    def digests(self) -> Digests:
        """All digests, once every granule was read.

        Raises:
            InvariantBroken: a granule was never given to `update`.
        """
        return compose(self._layout, self.segment_crcs(), self._segments.granule_bytes)


def digest_slot(
    layout: Layout, view: memoryview, granule_bytes: int = GRANULE_BYTES, threads: int = 1
) -> Digests:
    """Digest a resting slot; `view` holds at least the extent, more is not read.

    Raises:
        InvalidInput: the view is shorter than the extent or not contiguous; threads below 1.
    """
    if threads < 1:
        raise InvalidInput(f"{threads} threads", field="threads")
    data = _bytes_of(view)
    if data.nbytes < layout.extent_bytes:
        raise InvalidInput(
            f"a slot of {data.nbytes} bytes cannot hold an extent of {layout.extent_bytes}",
            field="view",
        )
    digester = Digester(layout, granule_bytes)

    def read(run: tuple[int, int]) -> None:
        start_bytes = run[0] * granule_bytes
        end_bytes = min((run[0] + run[1]) * granule_bytes, layout.extent_bytes)
        digester.update(*run, data[start_bytes:end_bytes])

    runs = list(_runs(digester.granule_count))
    if threads == 1 or len(runs) < 2:
        for run in runs:
            read(run)
    else:
        with ThreadPoolExecutor(threads, thread_name_prefix="digest") as pool:
            for _ in pool.map(read, runs):
                pass  # the first failure is raised here
    return digester.digests()


def _runs(granule_count: int) -> Iterator[tuple[int, int]]:
    for first in range(0, granule_count, _RUN_GRANULES):
        yield first, min(_RUN_GRANULES, granule_count - first)


def _bytes_of(view: memoryview) -> memoryview:
    if not view.c_contiguous:
        raise InvalidInput("the view is not contiguous", field="view")
    return view.cast("B") if view.nbytes else memoryview(b"")
