"""Timetable: planned wires, each with its sender and its receiver for itself."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bench.fabric.planning.job import Job

#: Between two wires of one link, so that rounding never makes them overlap.
GAP_S = 1e-6
#: Begin, end and move of a wire; wires of one link are disjoint, so that their ends are in order.
_Span = tuple[float, float, str]


@dataclass(frozen=True, slots=True)
class Wire:
    """One planned wire."""

    job: Job
    source: str
    target: str
    begin_s: float

    @property
    def end_s(self) -> float:
        """When its last byte is verified."""
        return self.begin_s + self.job.wire_s[self.source]


class Timetable:
    """Wires by move, and the spans of every sender's and receiver's link."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self._nodes = tuple(nodes)
        self._wires: dict[str, Wire] = {}
        self._out: dict[str, list[_Span]] = {node: [] for node in self._nodes}
        self._into: dict[str, list[_Span]] = {node: [] for node in self._nodes}

    def __len__(self) -> int:
        return len(self._wires)

    def __contains__(self, move_id: str) -> bool:
        return move_id in self._wires

    def __iter__(self) -> Iterator[Wire]:
        return iter(self._wires.values())

    def copy(self) -> Timetable:
        """One that changes apart from this one."""
        other = Timetable(())
        other._nodes = self._nodes
        other._wires = dict(self._wires)
        other._out = {node: list(spans) for node, spans in self._out.items()}
        other._into = {node: list(spans) for node, spans in self._into.items()}
        return other

    def add(self, wire: Wire) -> None:
        """Put a wire where both its ends are free."""
        assert wire.job.move_id not in self._wires
        self._wires[wire.job.move_id] = wire
        for spans in (self._out[wire.source], self._into[wire.target]):
            insort(spans, (wire.begin_s, wire.end_s, wire.job.move_id))

    def remove(self, move_id: str) -> Wire:
        """Take a wire out."""
        wire = self._wires.pop(move_id)
        for spans in (self._out[wire.source], self._into[wire.target]):
            del spans[bisect_left(spans, (wire.begin_s, wire.end_s, move_id))]
        return wire

    def paths(self, job: Job) -> Iterator[tuple[Wire, float]]:
        """For every source and target the earliest wire in time, and what idles before it.

        That is, in seconds, how long its sender and its receiver would have stood still.
        """
        for source in job.wire_s:
            for target in self._nodes:
                if target != source:
                    begin_s = self._earliest_s(job, source, target)
                    if begin_s is not None:
                        idle_s = _idle_s(self._out[source], begin_s)
                        idle_s += _idle_s(self._into[target], begin_s)
                        yield Wire(job, source, target, begin_s), idle_s

    def _earliest_s(self, job: Job, source: str, target: str) -> float | None:
        begin_s, latest_s = job.ready_s, job.latest_s(source)
        length_s = job.wire_s[source] + GAP_S
        out, into = self._out[source], self._into[target]
        while begin_s <= latest_s:
            later_s = _free_from_s(into, _free_from_s(out, begin_s, length_s), length_s)
            if later_s == begin_s:
                return begin_s
            begin_s = later_s
        return None


def _free_from_s(spans: list[_Span], begin_s: float, length_s: float) -> float:
    """That begin where the link is free for so long, else the end of who is first in the way."""
    place = bisect_right(spans, (begin_s, float("inf"), ""))
    if place and spans[place - 1][1] + GAP_S > begin_s:
        return spans[place - 1][1] + GAP_S
    if place < len(spans) and spans[place][0] < begin_s + length_s:
        return spans[place][1] + GAP_S
    return begin_s


def _idle_s(spans: list[_Span], begin_s: float) -> float:
    place = bisect_right(spans, (begin_s, float("inf"), ""))
    return begin_s - spans[place - 1][1] if place else 0.0
