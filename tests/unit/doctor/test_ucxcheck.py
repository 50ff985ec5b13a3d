"""Fault 33: variables that name nothing, or leave what cannot carry what it should."""

from __future__ import annotations

import pytest

from worldline.doctor.facts import MOVER, ProcessFacts
from worldline.doctor.finding import Severity
from worldline.doctor.ucxcheck import check_ucx

HOST = ("cma/memory", "posix/memory", "self/memory", "sysv/memory", "tcp/eth0", "tcp/lo")
RDMA = (*HOST, "rc_mlx5/mlx5_0:1")
ERROR, WARNING = Severity.ERROR, Severity.WARNING


def facts(lanes: tuple[str, ...] = HOST, **given: object) -> ProcessFacts:
    variables = {f"UCX_{name}": value for name, value in given.items() if name.isupper()}
    others = {name: value for name, value in given.items() if not name.isupper()}
    return ProcessFacts(MOVER, "node-1", environment=variables, lanes_here=lanes, **others)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("variables", "code", "severity", "field"),
    [
        ({"TLS": "tcp,nonsense"}, "UCX_TLS_UNKNOWN", ERROR, "UCX_TLS"),
        ({"TLS": "^nonsense"}, "UCX_TLS_UNKNOWN", WARNING, "UCX_TLS"),
        ({"TLS": "cuda_ipc"}, "UCX_TLS_NOTHING", ERROR, "UCX_TLS"),
        ({"TLS": ""}, "UCX_TLS_MALFORMED", ERROR, "UCX_TLS"),
        ({"TLS": "all,tcp"}, "UCX_TLS_MALFORMED", ERROR, "UCX_TLS"),
        ({"TLS": "tcp,rc"}, "UCX_TLS_ABSENT", WARNING, "UCX_TLS"),
        ({"TLS": "sm,self"}, "UCX_TLS_ONE_HOST", WARNING, "UCX_TLS"),
        ({"NET_DEVICES": "eth9"}, "UCX_NET_DEVICES_NOTHING", ERROR, "UCX_NET_DEVICES"),
        ({"NET_DEVICES": "mlx5_0:1,eth9"}, "UCX_NET_DEVICES_NOTHING", ERROR, "UCX_NET_DEVICES"),
        ({"NET_DEVICES": ""}, "UCX_NET_DEVICES_NOTHING", ERROR, "UCX_NET_DEVICES"),
        ({"NET_DEVICES": "all,lo"}, "UCX_NET_DEVICES_MALFORMED", ERROR, "UCX_NET_DEVICES"),
        ({"NET_DEVICES": "^lo,eth0"}, "UCX_NET_DEVICES_UNUSED", ERROR, "UCX_NET_DEVICES"),
        ({"NET_DEVICES": "lo,eth9"}, "UCX_NET_DEVICES_ABSENT", WARNING, "UCX_NET_DEVICES"),
    ],
)
def test_each_is_named_with_its_variable(
    variables: dict[str, str], code: str, severity: Severity, field: str
) -> None:
    (found,) = check_ucx(facts(**variables))
    assert (found.code, found.severity, found.field) == (code, severity, field)
    (value,) = variables.values()
    assert f"{field}={value} " in found.what
    assert field in found.remedy
    assert found.why


@pytest.mark.parametrize(
    "variables",
    [{}, {"TLS": "all"}, {"TLS": "tcp,sm"}, {"NET_DEVICES": "eth0"}, {"NET_DEVICES": "all"}],
)
def test_what_can_work_is_left_alone(variables: dict[str, str]) -> None:
    assert check_ucx(facts(**variables)) == ()


def test_a_device_that_the_transports_do_not_use() -> None:
    found = check_ucx(facts(RDMA, TLS="tcp,sm", NET_DEVICES="mlx5_0:1"))
    assert [one.code for one in found] == ["UCX_NET_DEVICES_UNUSED"]
    assert "UCX_TLS=tcp,sm" in found[0].what


def test_device_memory_that_will_be_staged() -> None:
    lanes = (*HOST, "cuda_copy/cuda", "cuda_ipc/cuda")
    (found,) = check_ucx(facts(lanes, TLS="tcp", devices=("cuda:0",)))
    assert (found.code, found.remedy) == ("UCX_TLS_STAGED", "export UCX_TLS=tcp,cuda")
    assert check_ucx(facts(lanes, TLS="tcp", devices=("cpu",))) == ()
    assert check_ucx(facts(lanes, TLS="tcp,cuda", devices=("cuda:0",))) == ()


def test_rdma_that_no_lane_uses() -> None:
    (found,) = check_ucx(facts(RDMA, TLS="tcp", rdma_devices=("mlx5_0:1",)))
    assert (found.code, found.severity) == ("RDMA_UNUSED", WARNING)
    (missing,) = check_ucx(facts(HOST, rdma_devices=("mlx5_0:1",)))
    assert missing.code == "RDMA_UNUSED"
    assert check_ucx(facts(RDMA, rdma_devices=("mlx5_0:1",))) == ()


def test_nothing_is_said_where_ucx_was_not_asked() -> None:
    assert check_ucx(facts((), TLS="nonsense")) == ()
