"""Inspection: what a dirty trace says of a state as a whole and of each group of its leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worldline.state.dirty import DirtyTrace, Shares
from worldline.state.leaf_group import LeafGroup, each_leaf, groups_by_pattern
from worldline.state.update_rule import Classification, classify
from worldline.state.writes import Writes


@dataclass(frozen=True, slots=True, eq=False)
class GroupReport:
    """One group of leaves: its writes, its rule, where in the window it is written."""

    pattern: str
    leaf_count: int
    never_written_count: int
    size_bytes: int
    steps: tuple[Writes, ...]
    classification: Classification
    #: Mean over the steps of the state's present regime.
    dirty_fraction: float
    #: Per position of the window; None where there is none or granules are too coarse.
    position_heat: Shares | None
    #: The longest granule that would tell positions apart; None where there is no window.
    position_piece_bytes: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Inspection:
    """The state as a whole, and its groups."""

    trace: DirtyTrace
    steps: tuple[Writes, ...]
    classification: Classification
    groups: tuple[GroupReport, ...]
    never_written: tuple[int, ...]
    never_written_bytes: int

    @property
    def present(self) -> tuple[Writes, ...]:
        """The steps of the present regime: what figures without a step are means over."""
        return self.steps[self.classification.first_step :]

    @property
    def state_bytes(self) -> int:
        """Of all leaves; memory that leaves share counts once."""
        return self.trace.bytes_of(range(len(self.trace.layout.tensors)))

    @property
    def dirty_fraction(self) -> float:
        """Of the state, a step of the present regime."""
        return _dirty_fraction(self.present)

    @property
    def rewritten_fraction(self) -> float:
        """Of what had been written before, in the present regime."""
        before = sum(step.written_before_bytes for step in self.present)
        return sum(step.rewritten_bytes for step in self.present) / before if before else 0.0

    @property
    def dirty_rate_bytes_per_s(self) -> float:
        """D over the present regime, by the clock: the reading of boundaries is in it."""
        elapsed_ms = sum(step.elapsed_ms for step in self.present)
        changed = sum(step.changed_bytes for step in self.present)
        return changed / elapsed_ms * 1e3 if elapsed_ms > 0 else 0.0

    @property
    def read_ms(self) -> float:
        """The longest that the world waited at a boundary for its digests."""
        return max(each.read_ms for each in self.trace.boundaries)


def inspection_of(trace: DirtyTrace, *, by_leaf: bool = False) -> Inspection:
    """All figures of a trace; groups are leaves of one pattern, or single leaves."""
    steps = trace.writes()
    classification = classify(steps)
    groups = each_leaf(trace.layout) if by_leaf else groups_by_pattern(trace.layout)
    never = trace.never_written()
    return Inspection(
        trace=trace,
        steps=steps,
        classification=classification,
        groups=tuple(_report(trace, each, classification.first_step, never) for each in groups),
        never_written=never,
        never_written_bytes=trace.bytes_of(never),
    )


def _report(
    trace: DirtyTrace, group: LeafGroup, first_step: int, never: tuple[int, ...]
) -> GroupReport:
    steps = trace.writes(group.leaves)
    untouched = set(never).intersection(group.leaves)
    return GroupReport(
        pattern=group.pattern,
        leaf_count=len(group.leaves),
        never_written_count=len(untouched),
        size_bytes=trace.bytes_of(group.leaves),
        steps=steps,
        classification=classify(steps),
        dirty_fraction=_dirty_fraction(steps[first_step:]),
        position_heat=trace.position_heat(group.leaves, first_step),
        position_piece_bytes=trace.position_piece_bytes(group.leaves),
    )


def _dirty_fraction(steps: Sequence[Writes]) -> float:
    return sum(step.dirty_fraction for step in steps) / len(steps) if steps else 0.0
