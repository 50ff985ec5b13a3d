"""Dirty: which bytes of a state its blocks write, from its digests at successive boundaries.

A trace flags *segments*: the pieces of an extent between granule and leaf boundaries. A segment
lies in one granule, and in one leaf, or in several that share memory, or in none (padding, which
counts nowhere). So all figures are sums over the same segments: bytes of leaves that do not overlap
add up to those of the state, exactly, however coarse the granules are. Coarseness shows in one way
only: a segment of which one byte changed counts whole, at most one granule too much at either end
of each contiguous run of what was written. A window that lies in many short runs needs granules no
longer than those (`position_piece_bytes`).

The segment that an append ends in is counted as appended although part of it was written before:
it is the one right before bytes that never were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from worldline.errors import InvalidInput
from worldline.state.boundary import Baseline, Boundary, Flags
from worldline.state.layout import Layout
from worldline.state.positions import Positions, positions_of
from worldline.state.ranges import Indices
from worldline.state.segments import Segments, segments_of
from worldline.state.writes import Writes

#: A share of bytes per cell or position, 0 to 1.
Shares = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """What one step did to each segment."""

    before: Boundary
    after: Boundary
    written_before: Flags
    appended: Flags
    rewritten: Flags


@dataclass(frozen=True, eq=False)
class DirtyTrace:
    """Successive boundaries of one state, all of one layout.

    Raises:
        InvalidInput: no boundary, boundaries out of order, or flags of another number of segments.
    """

    layout: Layout
    granule_bytes: int
    baseline: Baseline
    boundaries: tuple[Boundary, ...]

    def __post_init__(self) -> None:
        if not self.boundaries:
            raise InvalidInput("a trace has one boundary at least", field="boundaries")
        indices = [each.block_index for each in self.boundaries]
        if indices != sorted(set(indices)):
            raise InvalidInput("boundaries do not follow each other", field="boundaries")
        count = self.segments.count
        for each in self.boundaries:
            if each.changed.shape != (count,) or each.differs.shape != (count,):
                raise InvalidInput(
                    f"flags of another layout: this one has {count} segments", field="boundaries"
                )

    @property
    def segments(self) -> Segments:
        """The pieces that the flags are of."""
        return segments_of(self.layout, self.granule_bytes)

    @property
    def last_block(self) -> int:
        """The last block that was observed; one before the first where none was."""
        return self.boundaries[-1].block_index - 1

    def writes(self, leaves: Sequence[int] | None = None) -> tuple[Writes, ...]:
        """What each step did to these leaves (indices into the layout's tensors), or to all."""
        chosen = range(len(self.layout.tensors)) if leaves is None else leaves
        segments = self._segments_in(chosen)
        sizes = self._sizes[segments]
        size_bytes = int(sizes.sum())
        used_bytes = int(self._sizes[self._segments_in(self._used(chosen))].sum())
        return tuple(
            Writes(
                block_index=step.before.block_index,
                block_count=step.after.block_index - step.before.block_index,
                elapsed_ms=step.after.at_ms - step.before.at_ms,
                size_bytes=size_bytes,
                used_bytes=used_bytes,
                written_before_bytes=int(sizes @ step.written_before[segments]),
                appended_bytes=int(sizes @ step.appended[segments]),
                new_bytes=int(sizes @ (step.appended & ~step.written_before)[segments]),
                rewritten_bytes=int(sizes @ step.rewritten[segments]),
            )
            for step in self._steps
        )

    def never_written(self) -> tuple[int, ...]:
        """Leaves that had the baseline's content at every observed boundary.

        With `Baseline.INITIAL_STATE`: constant since the session began, as far as digests at
        these boundaries tell.
        """
        return tuple(index for index in range(len(self.layout.tensors)) if not self._is_used(index))

    def constant(self) -> tuple[int, ...]:
        """Leaves whose content is the same at every observed boundary, never written or not."""
        return tuple(
            index
            for index in range(len(self.layout.tensors))
            if not self._ever_changed[self._slice(index)].any()
        )

    def bytes_of(self, leaves: Sequence[int]) -> int:
        """Bytes that these leaves cover together."""
        return int(self._sizes[self._segments_in(leaves)].sum())

    def heat(self, cells: int, first_step: int = 0) -> Shares:
        """The extent cut into equal cells: of each cell's bytes, the share that a step changes.

        The mean over the steps from `first_step` on; 0 where there are none.
        """
        return self._shares_of_cells(cells, self._changed_each(first_step))

    def heat_by_step(self, cells: int) -> Shares:
        """The same for every step by itself, (steps, cells)."""
        changed = [step.appended | step.rewritten for step in self._steps]
        rows = [self._shares_of_cells(cells, each.astype(np.float64)) for each in changed]
        return np.array(rows, np.float64).reshape(len(rows), cells)

    def position_heat(self, leaves: Sequence[int], first_step: int = 0) -> Shares | None:
        """Per position of the window (see `positions`): the share of its bytes that a step changes.

        The mean over leaves and over the steps from `first_step` on. None where a leaf has no
        window, their windows have other numbers of positions, or a granule is longer than the
        contiguous piece of a position and would mix them.
        """
        windows = self._windows(leaves)
        if not windows or self.granule_bytes > min(each.shortest_bytes for each in windows):
            return None
        changed = self._changed_each(first_step)
        total, sizes = np.zeros(windows[0].count), np.zeros(windows[0].count)
        for index, each in zip(leaves, windows, strict=True):
            total += self._position_bytes(index, each, changed)
            sizes += each.sizes_bytes
        return total / sizes

    def position_piece_bytes(self, leaves: Sequence[int]) -> int | None:
        """The longest granule that keeps the positions of these leaves apart; None: no window."""
        windows = self._windows(leaves)
        return min(each.shortest_bytes for each in windows) if windows else None

    def _windows(self, leaves: Sequence[int]) -> list[Positions]:
        """The positions of each leaf; empty where one has none, or they differ in number."""
        found = [positions_of(self.layout.tensors[index]) for index in leaves]
        known = [each for each in found if each is not None]
        alike = len(known) == len(found) and len({each.count for each in known}) == 1
        return known if alike else []

    def _shares_of_cells(self, cells: int, changed: Shares) -> Shares:
        bounds = self.segments.bounds
        if len(bounds) < 2:
            return np.zeros(cells)
        edges = np.arange(cells + 1, dtype=np.int64) * self.segments.extent_bytes // cells
        before = np.concatenate(([0.0], np.cumsum(self._sizes * changed)))
        total, sizes = np.diff(np.interp(edges, bounds, before)), np.diff(edges)
        return np.divide(total, sizes, out=np.zeros(cells), where=sizes > 0)

    def _position_bytes(self, index: int, positions: Positions, changed: Shares) -> Shares:
        leaf, run = self.layout.tensors[index], self._slice(index)
        starts = self.segments.bounds[run] - leaf.offset_bytes
        ends = self.segments.bounds[run.start + 1 : run.stop + 1] - leaf.offset_bytes
        return np.asarray(changed[run] @ positions.overlaps(starts, ends), np.float64)

    def _changed_each(self, first_step: int) -> Shares:
        """Per segment: of the steps from this one on, the share that changed it."""
        steps = self._steps[first_step:]
        changed = np.zeros(self.segments.count)
        for step in steps:
            changed += step.appended | step.rewritten
        return changed / len(steps) if steps else changed

    @cached_property
    def _sizes(self) -> Indices:
        return np.diff(self.segments.bounds)

    @cached_property
    def _steps(self) -> tuple[_Step, ...]:
        covered, goes_on = self._covered, self._goes_on
        written = self.boundaries[0].differs & covered
        steps = []
        for before, after in zip(self.boundaries, self.boundaries[1:], strict=False):
            changed = after.changed & covered
            ends_append = np.zeros_like(written)
            ends_append[:-1] = goes_on[:-1] & ~written[1:]
            rewritten = changed & written & ~ends_append
            steps.append(_Step(before, after, written, changed & ~rewritten, rewritten))
            written = written | changed
        return tuple(steps)

    @cached_property
    def _ever_changed(self) -> Flags:
        changed = np.zeros(self.segments.count, np.bool_)
        for each in self.boundaries[1:]:
            changed |= each.changed
        return changed

    @cached_property
    def _ever_written(self) -> Flags:
        written = self._ever_changed.copy()
        for each in self.boundaries:
            written |= each.differs
        return written

    @cached_property
    def _covered(self) -> Flags:
        """Segments that lie in a leaf."""
        covered = np.zeros(self.segments.count, np.bool_)
        for index in range(len(self.layout.tensors)):
            covered[self._slice(index)] = True
        return covered

    @cached_property
    def _goes_on(self) -> Flags:
        """Segments behind which the same leaf goes on."""
        goes_on = np.zeros(self.segments.count, np.bool_)
        for index in range(len(self.layout.tensors)):
            run = self._slice(index)
            goes_on[run.start : max(run.stop - 1, run.start)] = True
        return goes_on

    def _slice(self, leaf: int) -> slice:
        segments = self.segments
        return slice(int(segments.leaf_starts[leaf]), int(segments.leaf_ends[leaf]))

    def _segments_in(self, leaves: Sequence[int]) -> Indices:
        """Indices of the segments that these leaves cover, each once."""
        chosen = np.zeros(self.segments.count, np.bool_)
        for index in leaves:
            chosen[self._slice(index)] = True
        return np.flatnonzero(chosen)

    def _used(self, leaves: Sequence[int]) -> list[int]:
        return [index for index in leaves if self._is_used(index)]

    def _is_used(self, leaf: int) -> bool:
        return bool(self._ever_written[self._slice(leaf)].any())
