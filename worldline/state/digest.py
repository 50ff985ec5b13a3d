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

from awscrt.checksums import combine_crc64nvme, crc64nvme

from worldline.errors import InvalidInput, InvariantBroken
from worldline.state.difference import Difference, compare
from worldline.state.layout import Layout
from worldline.state.manifest import CRC64NVME, Digests
from worldline.state.segments import Prefixes, Segments, segments_of
from worldline.state.topology import scalars_encoding

__all__ = ["GRANULE_BYTES", "Difference", "Digester", "compare", "crc64", "digest_slot"]

#: Granule that the whole project agrees on, 1 MiB.
GRANULE_BYTES = 1 << 20
#: What the proto's uint32 holds.
GRANULE_BYTES_MAX = (1 << 32) - 1
#: Granules that one task of `digest_slot` reads: long enough that a task costs nothing.
_RUN_GRANULES = 16


def crc64(data: bytes | bytearray | memoryview) -> int:
    """CRC-64/NVME of these bytes, for anything beside the slot (frames, probes)."""
    value: int = crc64nvme(data)
    return value


class Digester:
    """Digests a slot run by run, in any order, while other runs still move.

    `update` may be called from several threads for disjoint runs. A run given twice counts with
    its last bytes.
    """

    def __init__(self, layout: Layout, granule_bytes: int = GRANULE_BYTES) -> None:
        self._layout = layout
        self._segments = _segments(layout, granule_bytes)
        self._crcs: list[int | None] = [None] * (len(self._segments.bounds) - 1)

    @property
    def granule_count(self) -> int:
        """Granules of the layout's extent."""
        return self._segments.granule_count

    def update(self, first_granule: int, granule_count: int, view: memoryview) -> None:
        """Digest a run of granules; `view` is exactly those bytes, C-contiguous.

        Raises:
            InvalidInput: the run lies outside the extent, or the view has another size.
        """
        segments = self._segments
        if first_granule < 0 or granule_count < 0:
            raise InvalidInput("a run of granules is not negative", field="first_granule")
        if first_granule + granule_count > segments.granule_count:
            raise InvalidInput(
                f"granules {first_granule}+{granule_count} of {segments.granule_count}",
                field="granule_count",
            )
        start_bytes, end_bytes = segments.run_bytes(first_granule, granule_count)
        data = _bytes_of(view)
        if data.nbytes != end_bytes - start_bytes:
            raise InvalidInput(
                f"{data.nbytes} bytes for a run of {end_bytes - start_bytes}", field="view"
            )
        bounds = segments.bounds
        first = segments.granule_starts[first_granule]
        last = segments.granule_starts[first_granule + granule_count]
        for index in range(first, last):
            piece = data[bounds[index] - start_bytes : bounds[index + 1] - start_bytes]
            self._crcs[index] = crc64nvme(piece)

    def digests(self) -> Digests:
        """All digests, once every granule was read.

        Raises:
            InvariantBroken: a granule was never given to `update`.
        """
        segments = self._segments
        crcs = [crc for crc in self._crcs if crc is not None]
        if len(crcs) != len(self._crcs):
            at_bytes = segments.bounds[self._crcs.index(None)]
            granule = at_bytes // segments.granule_bytes
            raise InvariantBroken(f"granule {granule} was never digested", granule=granule)
        prefixes = Prefixes(segments, crcs)
        starts = segments.granule_starts
        header = self._layout.topology_hash + scalars_encoding(self._layout.scalars)
        return Digests(
            algorithm=CRC64NVME,
            granule_bytes=segments.granule_bytes,
            granules=tuple(prefixes.crc(start, end) for start, end in pairwise(starts)),
            leaves=tuple(prefixes.crc(start, end) for start, end in segments.leaf_ranges),
            whole=combine_crc64nvme(crc64nvme(header), prefixes.whole(), segments.extent_bytes),
        )


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


def _segments(layout: Layout, granule_bytes: int) -> Segments:
    if type(granule_bytes) is not int or not 0 < granule_bytes <= GRANULE_BYTES_MAX:
        raise InvalidInput(f"granule of {granule_bytes} bytes", field="granule_bytes")
    spans = tuple((leaf.offset_bytes, leaf.end_bytes) for leaf in layout.tensors)
    return segments_of(layout.extent_bytes, spans, granule_bytes)


def _bytes_of(view: memoryview) -> memoryview:
    if not view.c_contiguous:
        raise InvalidInput("the view is not contiguous", field="view")
    return view.cast("B") if view.nbytes else memoryview(b"")
