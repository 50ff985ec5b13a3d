"""Decide's output: JSON for scripts, a few lines and a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from worldline.cli.decision import Decision
from worldline.cli.fabric import Fabric
from worldline.cli.grid import Cell, Choice, Demand
from worldline.cli.output import console, human_bytes, print_json, print_table
from worldline.cli.quantities import human_ms, human_rate


def print_decision(decision: Decision, as_json: bool) -> None:
    """The answer with its reason; the numbers that led to it below."""
    if as_json:
        print_json(
            {"decision": decision.answer, "motion": decision.motion, "verdict": decision.verdict}
        )
        return
    motion, verdict = decision.motion, decision.verdict
    _say(f"{motion.motion.name}: {motion.reason}")
    if verdict is not None:
        named = f" ({verdict.label})" if decision.rejected else ""
        _say(f"{decision.answer}{named}: {verdict.explanation}")
    numbers = motion.numbers if verdict is None else verdict.numbers
    print_table(("NUMBER", "VALUE"), [(name, f"{value:.10g}") for name, value in numbers.items()])


def print_grid(
    fabrics: Sequence[Fabric],
    rows: Sequence[Sequence[Cell]],
    demand: Demand,
    figures: Sequence[Path],
    as_json: bool,
) -> None:
    """A row for each fabric, a column for each horizon."""
    if as_json:
        cells = [cell for row in rows for cell in row]
        paths = [str(path) for path in figures]
        print_json({"demand": demand, "fabrics": fabrics, "cells": cells, "figures": paths})
        return
    _say(
        f"{human_bytes(demand.state_bytes)}, dirtied at "
        f"{human_rate(demand.dirty_rate_bytes_per_s)}, {demand.at_once} moves at once"
    )
    columns = ("FABRIC", "RATE", *(human_ms(cell.horizon_ms) for cell in rows[0]))
    lines = [
        (fabric.name, human_rate(fabric.rate_bytes_per_s), *(cell.choice.value for cell in row))
        for fabric, row in zip(fabrics, rows, strict=True)
    ]
    print_table(columns, lines)
    for fabric, row in zip(fabrics, rows, strict=True):
        for cell in row:
            if cell.choice is Choice.PREWARM:
                _say(f"{fabric.name} at {human_ms(cell.horizon_ms)}: {cell.explanation}")
    for path in figures:
        _say(f"drawn to {path}")


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False)
