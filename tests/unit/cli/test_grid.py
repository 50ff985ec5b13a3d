"""The grid of fabrics and SLOs, cell by cell against the arithmetic."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.admissibility.condition import Condition, PathCost, Transfer
from worldline.admissibility.fleet import fluid_moves_max, horizon_bytes
from worldline.cli import paper
from worldline.cli.fabric import Fabric
from worldline.cli.grid import Choice, Demand, cell, grid
from worldline.cli.handling import Handling
from worldline.verdict import RejectReason

STATE_BYTES = 1_670_124_960
HORIZONS_MS = (100.0, 200.0, 400.0, 600.0, 1000.0)
ORDER = (Choice.REJECT, Choice.PREWARM, Choice.MIGRATE)


def demand(at_once: int = 2, warm_share: float = 1.0, dirty_rate: float = 0.93e9) -> Demand:
    return Demand(STATE_BYTES, dirty_rate, at_once, warm_share)


def test_the_papers_grid() -> None:
    choices = {
        cells[0].fabric: [each.choice for each in cells]
        for cells in grid(paper.FABRICS, HORIZONS_MS, demand(), Handling())
    }
    # Section 6.5: budget rejected in every cell, NVLink admitted at every SLO, PCIe-RDMA admitted
    # only from 400 ms on.
    assert set(choices["budget"]) == {Choice.REJECT}
    assert Choice.REJECT not in choices["nvlink"]
    assert [choice is Choice.REJECT for choice in choices["pcie-rdma"]] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert {Choice.MIGRATE, Choice.PREWARM} <= set(choices["pcie-rdma"])


@pytest.mark.parametrize(
    ("fabric", "horizon_ms"), list(itertools.product(paper.FABRICS, HORIZONS_MS))
)
def test_a_cell_agrees_with_the_arithmetic(fabric: Fabric, horizon_ms: float) -> None:
    condition = Condition(
        Transfer(STATE_BYTES, horizon_ms, 0.93e9), PathCost(fabric.rate_bytes_per_s, 10.0)
    )
    c_bytes = horizon_bytes(STATE_BYTES, 0.93e9, horizon_ms)
    moves_max = fluid_moves_max(c_bytes, fabric.rate_bytes_per_s, horizon_ms, 10.0)
    found = cell(fabric, horizon_ms, demand(at_once=3), Handling(setup_ms=10.0))
    if not condition.admissible:
        assert found.choice is Choice.REJECT
        assert found.reason in RejectReason.__members__
        assert "moves_max" not in found.numbers
    else:
        assert found.choice is (Choice.MIGRATE if moves_max >= 3 else Choice.PREWARM)
        assert found.numbers["moves_max"] == moves_max
    assert condition.numbers().items() <= found.numbers.items()


def test_one_move_alone_is_up_to_the_condition() -> None:
    fabric = Fabric("lab", 5.2e9)  # T = 321 ms and C/B = 392 ms: with 60 ms set-up N is 0.88
    alone = cell(fabric, 400.0, demand(at_once=1), Handling(setup_ms=60.0))
    assert alone.choice is Choice.MIGRATE
    assert alone.numbers["moves_max"] < 1
    pair = cell(fabric, 400.0, demand(at_once=2), Handling(setup_ms=60.0))
    assert (pair.choice, pair.reason) == (Choice.PREWARM, "FLEET_BOUND")


@pytest.mark.parametrize(
    ("warm_share", "horizon_ms", "choice"),
    [
        (0.64, 400.0, Choice.MIGRATE),
        (0.63, 400.0, Choice.PREWARM),
        (0.0, 400.0, Choice.PREWARM),
        (0.0, 12_000.0, Choice.MIGRATE),  # even a first touch fits
        (0.0, 11_990.0, Choice.PREWARM),
    ],
)
def test_cold_targets_are_prewarmed(warm_share: float, horizon_ms: float, choice: Choice) -> None:
    nvlink = paper.FABRICS[-1]
    found = cell(nvlink, horizon_ms, demand(warm_share=warm_share), Handling())
    assert found.choice is choice
    assert (found.reason == "TARGETS_COLD") == (choice is Choice.PREWARM)


def test_a_hopeless_cell_is_rejected_whatever_its_size() -> None:
    found = cell(Fabric("modem", 1.0), 1.0, demand(), Handling())
    assert found.choice is Choice.REJECT


@given(
    st.floats(1e6, 1e12),
    st.floats(1.0, 10.0),
    st.floats(1.0, 1e5),
    st.floats(1.0, 10.0),
    st.integers(1, 5),
    st.floats(0, 1e10),
)
def test_more_bandwidth_or_time_never_makes_it_worse(
    rate: float, faster: float, horizon_ms: float, longer: float, at_once: int, dirty_rate: float
) -> None:
    wanted = demand(at_once, dirty_rate=dirty_rate)
    base = cell(Fabric("a", rate), horizon_ms, wanted, Handling()).choice
    better = (
        cell(Fabric("a", rate * faster), horizon_ms, wanted, Handling()).choice,
        cell(Fabric("a", rate), horizon_ms * longer, wanted, Handling()).choice,
    )
    assert all(ORDER.index(choice) >= ORDER.index(base) for choice in better)
