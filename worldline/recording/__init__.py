"""Recording: a session as a run that can be kept, re-executed and compared."""

from __future__ import annotations

from worldline.recording.comparison import Difference, DifferenceKind, compare_runs
from worldline.recording.directory import RunWriter, read_run
from worldline.recording.recorder import record
from worldline.recording.replayer import Replayed, ReplayWish, replay
from worldline.recording.run import Run, RunBlock, RunHeader

__all__ = [
    "Difference",
    "DifferenceKind",
    "ReplayWish",
    "Replayed",
    "Run",
    "RunBlock",
    "RunHeader",
    "RunWriter",
    "compare_runs",
    "read_run",
    "record",
    "replay",
]
