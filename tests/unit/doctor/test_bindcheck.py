"""Where processes run: their NUMA node, their cores, and who shares them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from worldline.doctor.bindcheck import check_binding, check_shared_cores
from worldline.doctor.examination import Examination, Examined, Part, judge
from worldline.doctor.facts import ENGINE, MOVER, Gpu, ProcessFacts
from worldline.doctor.finding import Severity
from worldline.doctor.process import check_process

FINE = ProcessFacts(MOVER, "node-1", open_files_max=65_536, cpu_count=8, cpus="0-7", numa_node=0)
HERE = replace(FINE, service=ENGINE, boot_id="b", settings={"threads": "3"}, devices=("cuda:0",))
NEAR = Gpu("cuda:0", numa_node=1)


def cores(text: str, has: str) -> dict[str, object]:
    return {"settings": {"threads": "1", "cores": text}, "cpus": has}


@pytest.mark.parametrize(
    ("change", "code", "severity", "remedy"),
    [
        (
            {"numa_node_count": 2, "gpus": (NEAR,)},
            "NUMA_FAR",
            Severity.WARNING,
            "--cpunodebind=1",
        ),
        (
            {"numa_node_count": 2, "gpus": (NEAR,), "service": ENGINE},
            "NUMA_FAR",
            Severity.WARNING,
            "WORLDLINE_ENGINE_NUMA_NODE=1",
        ),
        (
            {"numa_node_count": 2, "gpus": (NEAR,), "numa_node": None},
            "NUMA_UNBOUND",
            Severity.INFO,
            "--cpunodebind=1",
        ),
        ({"numa_node_count": 2, "numa_node": None}, "NUMA_UNBOUND", Severity.INFO, "numactl"),
        (
            {"service": ENGINE, **cores("0-7", "0-3")},
            "CORES_CUT",
            Severity.WARNING,
            "WORLDLINE_ENGINE_CORES=0-3",
        ),
    ],
)
def test_each_is_named(
    change: dict[str, object], code: str, severity: Severity, remedy: str
) -> None:
    facts = replace(FINE, **change)  # type: ignore[arg-type]
    (found,) = check_binding(facts)
    assert (found.code, found.severity) == (code, severity)
    assert remedy in found.remedy
    assert found in check_process(facts)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"numa_node_count": 2, "gpus": (NEAR,), "numa_node": 1},
        {"numa_node_count": 2, "gpus": (NEAR, Gpu("cuda:1", numa_node=0))},
        {"numa_node": None},
        {"service": ENGINE, **cores("0-3", "0-3")},
        {"service": ENGINE, **cores("", "0-3")},
        {"service": ENGINE, **cores("0-3", "")},
        {"service": ENGINE, **cores("anything", "0-3")},
    ],
)
def test_what_is_right_is_left_alone(change: dict[str, object]) -> None:
    assert check_binding(replace(FINE, **change)) == ()  # type: ignore[arg-type]


def test_engines_that_share_cores_are_named_with_a_way_to_part_them() -> None:
    one, other = HERE, replace(HERE, instance="node-2")
    (found,) = check_shared_cores((one, other, FINE))
    assert (found.code, found.severity) == ("CORES_SHARED", Severity.INFO)
    assert found.subject == "engine node-1 and engine node-2"
    assert "CPUs 0-7" in found.what
    assert "CORES=0-3" in found.remedy
    assert "4-7" in found.remedy


def test_cores_that_were_given_twice_are_worse() -> None:
    one = replace(HERE, **cores("0-3", "0-3"))  # type: ignore[arg-type]
    other = replace(HERE, instance="node-2", **cores("2-5", "2-5"))  # type: ignore[arg-type]
    (found,) = check_shared_cores((one, other))
    assert (found.code, found.severity) == ("CORES_SHARED", Severity.WARNING)
    assert "CPUs 2-3" in found.what


@pytest.mark.parametrize(
    "other",
    [
        {"boot_id": "another machine"},
        {"boot_id": ""},
        {"cpus": "8-15"},
        {"cpus": ""},
        {"service": MOVER},
        {"settings": {"threads": "4"}},
        {"devices": ("cpu",)},
    ],
)
def test_who_shares_nothing_or_cannot_but_share_is_left_alone(other: dict[str, object]) -> None:
    second = replace(HERE, instance="node-2", **other)  # type: ignore[arg-type]
    assert check_shared_cores((HERE, second)) == ()


def test_the_doctor_judges_it_with_the_limits() -> None:
    one = replace(HERE, **cores("0-3", "0-1"))  # type: ignore[arg-type]
    other = replace(HERE, instance="node-2", **cores("0-1", "0-1"))  # type: ignore[arg-type]
    found = Examination(tuple(Examined(ENGINE, each.instance, facts=each) for each in (one, other)))
    codes = {finding.code for finding in judge(found, {Part.LIMITS})}
    assert {"CORES_CUT", "CORES_SHARED"} <= codes
    assert judge(found, {Part.MEMORY}) == ()
