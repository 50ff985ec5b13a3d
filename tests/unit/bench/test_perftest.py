"""ucx_perftest: what its last line means, and a real run where the tool is installed."""

from __future__ import annotations

import pytest

from bench.contestant import Failed, Skipped
from bench.peers.ucx_perftest import UcxPerftest, rate_bytes_per_s

OUTPUT = """\
|     Test     | # iterations | 50.0%ile | average | overall |  average |  overall |
                          26      0.212 207600.403 207600.403     2466.28    2466.25     5    5
"""


def test_the_overall_rate_is_read_in_powers_of_two() -> None:
    assert rate_bytes_per_s(OUTPUT) == pytest.approx(2466.25 * 2**20)


@pytest.mark.parametrize("output", ["", "ucx_perftest: error: no lanes", "1 2 3"])
def test_no_figure_is_no_result(output: str) -> None:
    with pytest.raises(Failed, match="no figure"):
        rate_bytes_per_s(output)


def test_the_tool_runs_over_the_lanes_that_it_is_given() -> None:
    tool = UcxPerftest("it", 32 << 20, 1 << 20, {"UCX_TLS": "posix,self"})
    try:
        tool.prepare()
    except Skipped as reason:
        pytest.skip(str(reason))
    assert 0 < tool.run() < 60


def test_lanes_that_do_not_exist_are_a_failure() -> None:
    tool = UcxPerftest("it", 1 << 20, 1 << 20, {"UCX_TLS": "nonsense"})
    try:
        tool.prepare()
    except Skipped as reason:
        pytest.skip(str(reason))
    with pytest.raises(Failed):
        tool.run()
