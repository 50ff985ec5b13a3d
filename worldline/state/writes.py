"""Writes: the bytes that one step of a trace wrote, and of which kind the writing was.

A step leads from one observed boundary to the next: one block, unless a boundary was missed.

    changed    content differs between the two boundaries
    appended   of the changed bytes, those where nothing had been written before
    rewritten  of the changed bytes, those that had been written before

Two fractions follow, and they answer two questions. The *dirty fraction*, changed / state, is what
a copy made at the boundary before would have to ship again: the paper's working set (section 3.3),
0.71-0.78 of a full window and about the block's share of it while the window fills. The *rewritten
fraction*, rewritten / written before, is what becomes of bytes once they are there: 0.000 of an
append-only cache, whose append is no rewrite, however large it is; the update rule is told by it.

All bytes are counted in whole segments: a granule of which one byte changed counts as changed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Writes:
    """What one step did to a state, or to some leaves of it; all sizes in bytes."""

    #: The first block of the step, and how many blocks it has.
    block_index: int
    block_count: int
    elapsed_ms: float
    #: Of all leaves that are looked at.
    size_bytes: int
    #: Of the leaves that were ever written, as of the trace's end.
    used_bytes: int
    written_before_bytes: int
    appended_bytes: int
    #: Of the appended bytes, those of segments that held nothing yet.
    new_bytes: int
    rewritten_bytes: int

    @property
    def changed_bytes(self) -> int:
        """Appended and rewritten."""
        return self.appended_bytes + self.rewritten_bytes

    @property
    def dirty_fraction(self) -> float:
        """Changed, of all bytes; 0 of nothing."""
        return self.changed_bytes / self.size_bytes if self.size_bytes else 0.0

    @property
    def rewritten_fraction(self) -> float:
        """Rewritten, of the bytes that had been written before; 0 where none had."""
        if not self.written_before_bytes:
            return 0.0
        return self.rewritten_bytes / self.written_before_bytes

    @property
    def dirty_rate_bytes_per_s(self) -> float:
        """D: changed bytes a second, the trace's own reading included in the time."""
        return self.changed_bytes / self.elapsed_ms * 1e3 if self.elapsed_ms > 0 else 0.0

    @property
    def room_bytes(self) -> int:
        """What is still unwritten after the step, in leaves that are written at all."""
        return self.used_bytes - self.written_before_bytes - self.new_bytes
