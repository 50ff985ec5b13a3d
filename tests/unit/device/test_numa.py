"""NUMA nodes, read from a machine that is written down here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.errors import InvalidInput
from worldline.numa import (
    CPU_MAX,
    Binding,
    cpus_by_node,
    format_cpu_list,
    numa_node_of_process,
    parse_cpu_list,
)


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    for number, cpus in ((0, "0-3,8-11\n"), (1, "4-7,12-15\n")):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(cpus)
    (tmp_path / "possible").write_text("0-1\n")
    return tmp_path


@pytest.mark.parametrize(
    ("cpus", "node"),
    [({0, 11}, 0), ({4}, 1), ({12, 15, 7}, 1), ({3, 4}, None), ({99}, None)],
)
def test_the_node_of_all_cpus(nodes: Path, cpus: set[int], node: int | None) -> None:
    assert numa_node_of_process(nodes, frozenset(cpus)) == node


def test_a_system_that_does_not_say(tmp_path: Path, nodes: Path) -> None:
    assert numa_node_of_process(tmp_path / "nothing", frozenset({0})) is None
    (nodes / "node0" / "cpulist").write_text("many\n")
    assert numa_node_of_process(nodes, frozenset({0})) is None


def test_cpu_lists() -> None:
    assert parse_cpu_list("") == frozenset()
    assert parse_cpu_list("5\n") == {5}
    assert parse_cpu_list("0-2,7,9-10") == {0, 1, 2, 7, 9, 10}
    with pytest.raises(ValueError, match="no CPU's number"):
        parse_cpu_list("0-x")


@pytest.mark.parametrize("text", ["3-1", "-1", "1-", "0-99999", "1;2", "٣", " 1, 2", "+1"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"CPU|down"):
        parse_cpu_list(text)


@given(st.frozensets(st.integers(0, CPU_MAX), max_size=64))
def test_a_list_is_written_as_it_is_read(cpus: frozenset[int]) -> None:
    assert parse_cpu_list(format_cpu_list(cpus)) == cpus


def test_runs_are_written_short() -> None:
    assert format_cpu_list(frozenset({0, 1, 2, 3, 8, 10, 11})) == "0-3,8,10-11"
    assert format_cpu_list(frozenset()) == ""
    assert str(Binding(frozenset({4, 5}), 1)) == "CPUs 4-5, NUMA node 1"
    assert str(Binding(frozenset())) == "CPUs none"


def test_a_node_without_cpus_is_no_place_to_run(tmp_path: Path) -> None:
    for node, text in ((0, "0-3"), (2, "\n")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(text)
    assert cpus_by_node(tmp_path) == {0: frozenset({0, 1, 2, 3})}


@pytest.mark.parametrize(
    ("cpus", "node"), [(frozenset({-1}), 0), (frozenset({CPU_MAX + 1}), 0), (frozenset(), -1)]
)
def test_a_binding_has_numbers_that_can_be(cpus: frozenset[int], node: int) -> None:
    with pytest.raises(InvalidInput):
        Binding(cpus, node)


def test_every_thread_of_a_process_is_bound() -> None:
    """In a process of its own, to one of the CPUs that it may use."""
    code = """
import os, threading
from worldline.numa import bind_process
ready, done = threading.Event(), threading.Event()
seen = []
def work():
    ready.set()
    done.wait()
    seen.append(os.sched_getaffinity(0))
thread = threading.Thread(target=work)
thread.start()
ready.wait()
one = frozenset({min(os.sched_getaffinity(0))})
bind_process(one)
done.set()
thread.join()
assert seen == [set(one)], seen
assert os.sched_getaffinity(0) == set(one)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
