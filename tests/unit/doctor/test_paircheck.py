"""Two processes on one machine that cannot share what they should (fault 32, ucx#11978)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from worldline.doctor.facts import ENGINE, MOVER, ProcessFacts
from worldline.doctor.finding import Severity
from worldline.doctor.paircheck import check_pairs

ONE = ProcessFacts(
    MOVER,
    "node-1",
    "node-1",
    boot_id="b",
    uid=1000,
    ipc_namespace=1,
    pid_namespace=2,
    devices=("cpu",),
)
TWO = replace(ONE, instance="node-2", node_id="node-2")
OWN = replace(ONE, service=ENGINE, instance="node-1-cpu")


def codes(*processes: ProcessFacts) -> list[tuple[str, Severity]]:
    return [(one.code, one.severity) for one in check_pairs(processes)]


def test_who_shares_everything_is_left_alone() -> None:
    assert codes(ONE, TWO, OWN) == []


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"pid_namespace": 9}, "PID_NAMESPACES_DIFFER"),
        ({"ipc_namespace": 9}, "IPC_NAMESPACES_DIFFER"),
        ({"uid": 0}, "USERS_DIFFER"),
        ({"ptrace_scope": 1}, "PTRACE_RESTRICTED"),
    ],
)
def test_two_movers(change: dict[str, int], code: str) -> None:
    other = replace(TWO, **change)  # type: ignore[arg-type]
    assert codes(ONE, other) == [(code, Severity.WARNING)]
    (found,) = check_pairs((ONE, other))
    assert found.subject == "mover node-1 and mover node-2"
    assert codes(ONE, replace(other, boot_id="another machine")) == []
    assert codes(ONE, replace(other, boot_id="")) == codes(replace(ONE, boot_id=""), other) == []


def test_unknown_namespaces_are_no_others() -> None:
    assert codes(ONE, replace(TWO, pid_namespace=0, ipc_namespace=0)) == []


def test_whoever_may_trace_is_not_restricted() -> None:
    restricted = replace(TWO, ptrace_scope=1, may_ptrace=True)
    assert codes(replace(ONE, ptrace_scope=1, may_ptrace=True), restricted) == []


def test_an_engine_and_its_mover() -> None:
    gpu = replace(OWN, devices=("cuda:0",), ipc_namespace=9, pid_namespace=9)
    (found,) = check_pairs((ONE, gpu))
    assert (found.code, found.severity) == ("ENGINE_NAMESPACES_DIFFER", Severity.ERROR)
    assert "IPC and PID" in found.what
    # Host memory is handed over as a descriptor, which needs neither.
    assert codes(ONE, replace(gpu, devices=("cpu",))) == []
    assert codes(ONE, replace(OWN, uid=0)) == [("ENGINE_USER_DIFFERS", Severity.ERROR)]
    assert codes(ONE, replace(OWN, boot_id="c", uid=0)) == [("ENGINE_ELSEWHERE", Severity.ERROR)]
    assert codes(TWO, gpu) == []  # another node's mover
