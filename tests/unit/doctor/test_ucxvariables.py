"""UCX_TLS and UCX_NET_DEVICES are read as UCX itself reads them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import ucxx._lib.libucxx as ucx_api
from hypothesis import assume, given
from hypothesis import strategies as st

from services.mover.transport.resources import EVERYTHING, lanes_here, parse_resources
from worldline.doctor.ucxvariables import (
    Lanes,
    NameList,
    is_known,
    is_network,
    lanes_left,
    takes_shared_memory,
    transport_list,
)

HERE = Lanes(("cma/memory", "posix/memory", "rc_mlx5/mlx5_0:1", "self/memory", "tcp/eth0"))
TRANSPORTS = (
    "tcp", "posix", "sysv", "mm", "shm", "sm", "self", "cma", "rc", "cuda", "all", "nonsense",
    "\\tcp", "\\sm", "tcp:aux", "xpmem", "ib",
)  # fmt: skip
DEVICES = ("lo", "eth0", "eth9", "all", "lo:1", "mlx5_0:1")


def lists_of(names: tuple[str, ...]) -> st.SearchStrategy[str | None]:
    listed = st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)
    return st.none() | st.builds("{}{}".format, st.sampled_from(("", "^")), listed.map(",".join))


@given(lists_of(TRANSPORTS), lists_of(DEVICES))
def test_what_is_left_is_what_ucx_leaves(tls: str | None, net_devices: str | None) -> None:
    named = {"TLS": tls, "NET_DEVICES": net_devices}
    options = {name: value for name, value in named.items() if value is not None}
    if any(NameList.parse(value).malformed for value in options.values()):
        with pytest.raises(ucx_api.UCXError):
            _resources(options)
        return
    here = _resources(EVERYTHING)
    left = set(lanes_left(tls, net_devices, Lanes(here)).names)
    try:
        found = set(_resources(options))
    except ucx_api.UCXError:
        found = set()
    assume(here == _resources(EVERYTHING))  # interfaces come and go
    if tls == "tcp:aux":
        assert found == set()  # UCX opens nothing where only auxiliary transports are left
    else:
        assert found == left


@pytest.mark.parametrize(
    ("tls", "net_devices", "left"),
    [
        (None, None, HERE.names),
        ("ib", None, ("rc_mlx5/mlx5_0:1",)),
        ("rc_x,sm", None, ("cma/memory", "posix/memory", "rc_mlx5/mlx5_0:1")),
        ("\\rc", None, ()),
        ("^tcp:aux", None, HERE.names),
        ("^sm", "mlx5_0:1", ("rc_mlx5/mlx5_0:1", "self/memory")),
        (None, "^mlx5_0:1", ("cma/memory", "posix/memory", "self/memory", "tcp/eth0")),
    ],
)
def test_with_an_rdma_device(
    tls: str | None, net_devices: str | None, left: tuple[str, ...]
) -> None:
    assert lanes_left(tls, net_devices, HERE).names == left


@pytest.mark.parametrize(
    ("tls", "takes"),
    [
        (None, True), ("all", True), ("tcp,self", False), ("sm", True), ("posix", True),
        ("^tcp", True), ("^sm", False), ("^posix,tcp", False), ("cma,tcp", False), ("mm", True),
    ],
)  # fmt: skip
def test_who_makes_segments_in_dev_shm(tls: str | None, takes: bool) -> None:
    assert takes_shared_memory(tls) is takes


@given(st.text(max_size=40))
def test_any_text_is_a_list(text: str) -> None:
    listed = NameList.parse(text)
    assert all(name and name == name.strip() for name in listed.names)
    assert listed.negated == text.startswith("^")
    assert all(":" not in name for name in transport_list(text).names)


def test_names() -> None:
    assert is_known("rc_mlx5")
    assert is_known("\\sm")
    assert not is_known("nonsense")
    assert is_network("tcp/eth0")
    assert not is_network("cuda_ipc/cuda")
    assert HERE.network_devices == {"eth0", "mlx5_0:1"}


def test_the_loopback_is_here() -> None:
    assert {"self/memory", "tcp/lo"} <= set(lanes_here())


def _resources(options: Mapping[str, str]) -> tuple[str, ...]:
    context = ucx_api.UCXContext(dict(options), (ucx_api.Feature.TAG,))
    return parse_resources(context.info)
