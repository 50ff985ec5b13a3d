"""NUMA nodes, read from a machine that is written down here."""

from __future__ import annotations

from pathlib import Path

import pytest

from worldline.numa import numa_node_of_process, parse_cpu_list


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
    with pytest.raises(ValueError, match="invalid literal"):
        parse_cpu_list("0-x")
