"""The judgement on everything that was found, by parts, and its exit status."""

from __future__ import annotations

from dataclasses import replace

import pytest

from worldline.doctor.clock import Offset
from worldline.doctor.examination import Examination, Examined, Part, exit_status_of, judge
from worldline.doctor.facts import MOVER, ProcessFacts
from worldline.doctor.finding import Finding, Severity, sorted_findings, worst
from worldline.doctor.lanecheck import Path

HERE = ("posix/memory", "tcp/eth0")
#: Everything is wrong with it, once in each part.
BAD = ProcessFacts(
    MOVER,
    "node-1",
    "node-1",
    boot_id="b",
    pid_namespace=1,
    versions={"protocol": "2"},
    environment={"UCX_TLS": "tcp,nonsense"},
    shared_memory_total_bytes=1 << 20,
    shared_memory_free_bytes=0,
    open_files_max=10,
    devices=("cuda:0",),
    lanes_here=HERE,
)
OTHER = ProcessFacts(
    MOVER,
    "node-2",
    "node-2",
    boot_id="b",
    pid_namespace=2,
    versions={"protocol": "3"},
    lanes_here=HERE,
)
FOUND = Examination(
    (
        Examined(MOVER, "node-1", "node-1", "h:1", BAD, Offset(9e3, 1.0)),
        Examined(MOVER, "node-2", "node-2", "h:2", replace(OTHER, open_files_max=None)),
    ),
    (
        Path("node-1", "node-2", refused="SENDER_BUSY: one move is under way"),
        Path("node-2", "node-1", failed="TRANSFER_FAILED: no lane reaches the peer"),
    ),
)
CODES = {
    Part.VERSIONS: {"VERSIONS_DIFFER"},
    Part.MEMORY: {"SHARED_MEMORY_TOO_SMALL"},
    Part.LIMITS: {"OPEN_FILES_FEW"},
    Part.DEVICES: {"DEVICE_MISSING"},
    Part.UCX: {"UCX_TLS_UNKNOWN"},
    Part.PROCESSES: {"PID_NAMESPACES_DIFFER"},
    Part.CLOCKS: {"CLOCK_OFF"},
    Part.LANES: {"PATH_NOT_MEASURED", "PATH_FAILED"},
}


@pytest.mark.parametrize("part", Part)
def test_a_part_says_its_own_and_no_more(part: Part) -> None:
    environment = {} if part is Part.MEMORY else BAD.environment
    bad = replace(FOUND.processes[0], facts=replace(BAD, environment=environment))
    found = replace(FOUND, processes=(bad, FOUND.processes[1]))
    assert {one.code for one in judge(found, {part})} == CODES[part]


def test_everything_is_said_worst_first_and_once() -> None:
    findings = judge(FOUND)
    severities = [one.severity for one in findings]
    assert severities == sorted(severities, reverse=True)
    assert len(findings) == len({*findings})
    assert judge(replace(FOUND, paths=FOUND.paths * 2)) == findings


def test_a_path_on_which_nothing_comes_through_is_an_error() -> None:
    busy, broken = (judge(replace(FOUND, paths=(one,)), {Part.LANES}) for one in FOUND.paths)
    assert [one.severity for one in busy] == [Severity.INFO]
    assert [one.severity for one in broken] == [Severity.ERROR]
    assert "no lane reaches the peer" in broken[0].what


def test_who_does_not_answer_is_a_finding() -> None:
    silent = Examined(MOVER, "node-3", "node-3", "h:3", reason="X", message="no answer within 3 s")
    (found,) = judge(Examination((silent,)))
    assert (found.code, found.severity, found.subject) == (
        "NO_ANSWER",
        Severity.ERROR,
        "mover node-3",
    )
    assert "h:3" in found.what
    assert judge(Examination((silent,)), {Part.UCX}) == ()


def test_a_self_test_that_failed_is_said_once() -> None:
    failed = replace(FOUND.processes[0], reason="UCX_TLS_UNKNOWN", message="m", field="UCX_TLS")
    said = [one.code for one in judge(Examination((failed,)))]
    assert said.count("UCX_TLS_UNKNOWN") == 1
    crashed = replace(failed, reason="UCX_CRASHED")
    assert "UCX_CRASHED" in {one.code for one in judge(Examination((crashed,)))}


@pytest.mark.parametrize(
    ("severities", "status"),
    [
        ((), 0),
        ((Severity.INFO,), 0),
        ((Severity.INFO, Severity.WARNING), 1),
        ((Severity.ERROR, Severity.WARNING), 7),
    ],
)
def test_the_exit_status_is_the_worst(severities: tuple[Severity, ...], status: int) -> None:
    findings = [Finding(one, one.name, "s", "w", "y", "r") for one in severities]
    assert exit_status_of(findings) == status
    assert worst(findings) == max(severities, default=None)
    assert [one.severity for one in sorted_findings(findings)] == sorted(severities, reverse=True)
