"""Limits of a process, and its processors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from worldline.doctor.facts import ENGINE, MOVER, ProcessFacts
from worldline.doctor.finding import Severity
from worldline.doctor.limitcheck import check_limits

FINE = ProcessFacts(MOVER, "node-1", open_files_max=65_536, cpu_count=8, numa_node=0)


@pytest.mark.parametrize(
    ("change", "code", "severity", "remedy"),
    [
        ({"open_files_max": 1024}, "OPEN_FILES_FEW", Severity.WARNING, "ulimit -n"),
        ({"pids_max": 300, "pids_used": 100}, "PIDS_FEW", Severity.WARNING, "--pids-limit"),
        (
            {"service": ENGINE, "settings": {"threads": "9"}},
            "THREADS_MANY",
            Severity.WARNING,
            "WORLDLINE_ENGINE_THREADS=8",
        ),
    ],
)
def test_each_is_named(
    change: dict[str, object], code: str, severity: Severity, remedy: str
) -> None:
    (found,) = check_limits(replace(FINE, **change))  # type: ignore[arg-type]
    assert (found.code, found.severity) == (code, severity)
    assert remedy in found.remedy


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"open_files_max": None},
        {"pids_max": None, "pids_used": 10_000},
        {"pids_max": 4096, "pids_used": 100},
        {"service": ENGINE, "settings": {"threads": "8"}},
    ],
)
def test_what_is_enough_is_left_alone(change: dict[str, object]) -> None:
    assert check_limits(replace(FINE, **change)) == ()  # type: ignore[arg-type]
