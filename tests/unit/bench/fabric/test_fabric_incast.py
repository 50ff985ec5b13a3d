"""Incast: the cell shows the collapse that the paper measured, and was given none of it."""

from __future__ import annotations

import dataclasses

import pytest

from bench.fabric.cell import Cell
from bench.fabric.incast import incast

CELL = Cell()
#: Section 6.3, Table 3, written out so that the module can be wrong: Gb/s a move, Gb/s into it.
TABLE_3 = {1: (73.0, 73.0), 2: (20.4, 43.0), 3: (7.8, 25.0)}


@pytest.mark.parametrize("fan_in", TABLE_3)
def test_the_collapse_is_the_papers(fan_in: int) -> None:
    move, receiver = TABLE_3[fan_in]
    played = incast(CELL, fan_in)
    assert played.move_gbit_per_s == pytest.approx(move, rel=0.05)
    assert played.receiver_gbit_per_s == pytest.approx(receiver, rel=0.10)


def test_two_thirds_of_the_incasts_of_two_stall() -> None:
    """Section 6.5."""
    assert incast(CELL, 2).stalled == pytest.approx(2 / 3, abs=0.06)
    assert incast(CELL, 1).stalled == 0


def test_the_calibration_can_tell_other_cells_apart() -> None:
    """With the long timer, or stalls half as often, the same table does not come out."""
    for other in (
        {"stall_s": 2.147},
        {"stalls_per_extra_flow_s": CELL.stalls_per_extra_flow_s / 2},
    ):
        played = incast(dataclasses.replace(CELL, **other), 3)
        assert played.move_gbit_per_s != pytest.approx(7.8, rel=0.2)
