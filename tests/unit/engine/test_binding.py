"""Binding: facts in, CPUs and a reason out; and what each setting may be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from services.engine import binding
from services.engine.binding import BindMode, BindWish, Surroundings, bind_engine, decide_binding
from services.engine.device import EngineDevice
from services.engine.settings import EngineSettings
from worldline.errors import InvalidInput
from worldline.numa import Binding

NODES = {0: frozenset({0, 1, 2, 3}), 1: frozenset({4, 5, 6, 7})}
ALL = frozenset(range(8))
TWO_SOCKETS = Surroundings(ALL, NODES, device_node=1)


def settings(**given: object) -> EngineSettings:
    fields = {"placement_address": "127.0.0.1:1", "mover_address": "127.0.0.1:1"}
    return EngineSettings(**(fields | given))  # type: ignore[arg-type]


def cpus(wish: BindWish, around: Surroundings = TWO_SOCKETS) -> frozenset[int] | None:
    return decide_binding(wish, around).cpus


def test_an_engine_goes_to_its_devices_node() -> None:
    decision = decide_binding(BindWish(), TWO_SOCKETS)
    assert decision.cpus == NODES[1]
    assert "NUMA node 1" in decision.reason


def test_a_node_that_was_named_comes_before_the_devices() -> None:
    assert cpus(BindWish(numa_node=0)) == NODES[0]


def test_cores_of_its_own_come_before_the_node() -> None:
    assert cpus(BindWish(cores=frozenset({2, 3}))) == {2, 3}


def test_off_is_off() -> None:
    assert cpus(BindWish(BindMode.OFF)) is None
    assert cpus(BindWish(BindMode.OFF, numa_node=0)) is None
    with pytest.raises(InvalidInput) as caught:
        cpus(BindWish(BindMode.OFF, frozenset({1})))
    assert caught.value.field == "cores"


def test_what_a_control_group_cuts_off_is_said() -> None:
    around = Surroundings(frozenset({4, 5}), NODES, device_node=1)
    decision = decide_binding(BindWish(cores=frozenset({4, 5, 6, 7})), around)
    assert decision.cpus == {4, 5}
    assert "without 6-7" in decision.reason
    assert cpus(BindWish(), around) == {4, 5}
    far = Surroundings(frozenset({0, 1}), NODES, device_node=1)
    decision = decide_binding(BindWish(), far)
    assert decision.cpus is None
    assert "no CPU of NUMA node 1" in decision.reason


def test_cores_that_are_not_there_are_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        cpus(BindWish(cores=frozenset({8, 9})))
    assert caught.value.field == "cores"
    assert "8-9" in caught.value.message
    assert "0-7" in caught.value.message


@pytest.mark.parametrize("nodes", [NODES, {}])
def test_a_node_that_is_not_there_is_refused(nodes: dict[int, frozenset[int]]) -> None:
    with pytest.raises(InvalidInput) as caught:
        cpus(BindWish(numa_node=7), Surroundings(ALL, nodes))
    assert caught.value.field == "numa_node"


@pytest.mark.parametrize(
    "around",
    [
        Surroundings(ALL, NODES, device_node=None),
        Surroundings(ALL, {0: ALL}, device_node=0),
        Surroundings(ALL, {}, device_node=0),
        Surroundings(ALL, NODES, device_node=5),
    ],
)
def test_where_nothing_is_gained_nothing_is_bound(around: Surroundings) -> None:
    decision = decide_binding(BindWish(), around)
    assert decision.cpus is None
    assert decision.reason


sets = st.frozensets(st.integers(0, 9), max_size=6)


@given(
    mode=st.sampled_from(BindMode),
    cores=sets,
    numa_node=st.none() | st.integers(0, 3),
    allowed=sets.filter(bool),
    nodes=st.dictionaries(st.integers(0, 3), sets.filter(bool), max_size=3),
    device_node=st.none() | st.integers(0, 3),
)
def test_it_never_binds_to_nothing_nor_to_what_is_forbidden(
    mode: BindMode,
    cores: frozenset[int],
    numa_node: int | None,
    allowed: frozenset[int],
    nodes: dict[int, frozenset[int]],
    device_node: int | None,
) -> None:
    around = Surroundings(allowed, nodes, device_node)
    try:
        decision = decide_binding(BindWish(mode, cores, numa_node), around)
    except InvalidInput as error:
        assert error.field in ("cores", "numa_node")  # noqa: PT017 - one way of two
        return
    assert decision.reason
    if decision.cpus is not None:
        assert decision.cpus
        assert decision.cpus <= allowed
        assert mode is BindMode.AUTO
        if cores:
            assert decision.cpus == cores & allowed


def test_the_process_is_bound_and_a_cpus_memory_is_where_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a made-up machine of two sockets; nothing of this process is changed."""
    for node, text in ((0, "0-3"), (1, "4-7")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(text + "\n")
    now: set[int] = set(ALL)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(now))

    def bind(wanted: frozenset[int]) -> None:
        now.clear()
        now.update(wanted)

    monkeypatch.setattr(binding, "bind_process", bind)
    gpu = EngineDevice("cuda:0", "GPU-1", numa_node=1)
    assert bind_engine(settings(), gpu, tmp_path) == (gpu, Binding(NODES[1], 1))
    now.update(ALL)
    # A GPU stays where it is, however wrong its engine's cores are: the row says where they were.
    assert bind_engine(settings(cores="0-1"), gpu, tmp_path) == (gpu, Binding(frozenset({0, 1}), 0))
    now.update(ALL)
    device, bound = bind_engine(settings(cores="2,6"), EngineDevice(), tmp_path)
    assert (device.numa_node, bound) == (None, Binding(frozenset({2, 6})))
    now.update(ALL)
    device, bound = bind_engine(settings(numa_node=0), EngineDevice(), tmp_path)
    assert (device.numa_node, bound) == (0, Binding(NODES[0], 0))
    now.update(ALL)
    assert bind_engine(settings(), EngineDevice(), tmp_path)[1] == Binding(ALL)


def test_settings_read_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDLINE_ENGINE_CORES", "0-2,8")
    monkeypatch.setenv("WORLDLINE_ENGINE_BIND", "off")
    read = settings()
    assert (read.cores, read.bind) == ({0, 1, 2, 8}, BindMode.OFF)
    assert settings(cores="").cores == frozenset()


@pytest.mark.parametrize(
    ("name", "bad"), [("cores", "0-"), ("cores", "3-1"), ("bind", "on"), ("numa_node", -1)]
)
def test_a_bad_setting_is_named(name: str, bad: object) -> None:
    with pytest.raises(ValidationError, match=name):
        settings(**{name: bad})
