"""Inspect output: what an inspection showed, for people and for machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from worldline.cli.heat import cells_of, heat_text, legend, strip
from worldline.cli.output import console, human_bytes, print_table
from worldline.errors import WorldlineError
from worldline.sdk import Inspected
from worldline.state.boundary import Baseline
from worldline.state.granulation import FINEST_BYTES
from worldline.state.inspection import GroupReport, Inspection
from worldline.state.update_rule import Regime, regime_of
from worldline.state.writes import Writes

#: Rows of the slot's strip.
_STRIP_ROWS = 3
#: Cells of the heat in JSON.
_JSON_CELLS = 256


def print_inspected(inspected: Inspected) -> None:
    """A summary, the regimes, the groups of leaves, and the slot."""
    inspection = inspected.inspection
    for line in summary(inspected):
        console.print(line, markup=False, highlight=False)
    console.print()
    print_table(
        ("BLOCKS", "MS/BLOCK", "DIRTY", "REWRITTEN", "APPENDED/BLOCK", "D", "REGIME"),
        [_regime_row(regime, steps) for regime, steps in regimes(inspection.steps)],
        drop=("MS/BLOCK", "APPENDED/BLOCK"),
    )
    console.print()
    unicode = "utf" in console.encoding.lower()
    print_table(
        ("LEAVES", "N", "BYTES", "DIRTY", "NEVER", "RULE", "WINDOW"),
        [_group_row(group, unicode) for group in inspection.groups],
        drop=("N", "NEVER", "WINDOW", "BYTES"),
    )
    _print_strip(inspection, unicode)


def summary(inspected: Inspected) -> Iterator[str]:
    """Lines on the state as a whole."""
    inspection, info = inspected.inspection, inspected.session
    trace = inspection.trace
    yield (
        f"session   {info.session_id} ({info.world.preset}, epoch {inspected.epoch}) on "
        f"{info.node_id}: {_blocks(inspection.steps)}, {len(trace.boundaries)} boundaries, "
        f"granules of {trace.granule_bytes} bytes"
    )
    yield (
        f"dirty     {inspection.dirty_fraction:.3f} of {human_bytes(inspection.state_bytes)} a "
        f"block, D = {human_bytes(inspection.dirty_rate_bytes_per_s)}/s; of what had been written "
        f"{inspection.rewritten_fraction:.3f} is rewritten"
    )
    yield f"rule      {inspection.classification.rule}: {inspection.classification.evidence}"
    yield f"never     {_never(inspection)}"
    yield f"read in   {inspection.read_ms:.1f} ms at most a boundary; the world waited for it"
    if inspected.stopped is not None:
        yield f"stopped   {_stopped(inspected.stopped)}"


def inspected_jsonable(inspected: Inspected) -> dict[str, Any]:
    """All figures, with units in their names."""
    inspection, info = inspected.inspection, inspected.session
    trace, tensors = inspection.trace, inspection.trace.layout.tensors
    return {
        "session_id": info.session_id,
        "node_id": info.node_id,
        "preset": info.world.preset,
        "epoch": inspected.epoch,
        "granule_bytes": trace.granule_bytes,
        "baseline": trace.baseline.value,
        "state_bytes": inspection.state_bytes,
        "dirty_fraction": inspection.dirty_fraction,
        "rewritten_fraction": inspection.rewritten_fraction,
        "dirty_rate_bytes_per_s": inspection.dirty_rate_bytes_per_s,
        "update_rule": inspection.classification.rule.value,
        "evidence": inspection.classification.evidence,
        "never_written": {
            "size_bytes": inspection.never_written_bytes,
            "leaves": [tensors[index].path for index in inspection.never_written],
        },
        "boundaries": [
            {"block_index": each.block_index, "at_ms": each.at_ms, "read_ms": each.read_ms}
            for each in trace.boundaries
        ],
        "steps": [_step_jsonable(step) for step in inspection.steps],
        "groups": [_group_jsonable(group) for group in inspection.groups],
        "heat": trace.heat(_JSON_CELLS, inspection.classification.first_step).tolist(),
        "stopped": None if inspected.stopped is None else _stopped(inspected.stopped),
    }


def regimes(steps: Sequence[Writes]) -> list[tuple[Regime, list[Writes]]]:
    """Runs of steps that did the same."""
    return [(regime, list(run)) for regime, run in groupby(steps, regime_of)]


def _stopped(error: WorldlineError) -> str:
    return f"{error.reason}: {error.message}"


def _never(inspection: Inspection) -> str:
    trace = inspection.trace
    share = inspection.never_written_bytes / inspection.state_bytes if inspection.state_bytes else 0
    held = {
        Baseline.INITIAL_STATE: "the content that the session began with",
        Baseline.ZEROS: "zero bytes (there was no room to make the initial state anew)",
    }[trace.baseline]
    count = len(inspection.never_written)
    return (
        f"{human_bytes(inspection.never_written_bytes)} ({share:.1%}) in {count} "
        f"{'leaf' if count == 1 else 'leaves'}: {held}, by digest, at all "
        f"{len(trace.boundaries)} boundaries"
    )


def _regime_row(regime: Regime, steps: list[Writes]) -> tuple[str, ...]:
    blocks = sum(step.block_count for step in steps)
    elapsed_ms = sum(step.elapsed_ms for step in steps)
    before = sum(step.written_before_bytes for step in steps)
    rewritten = sum(step.rewritten_bytes for step in steps)
    changed = sum(step.changed_bytes for step in steps)
    return (
        _blocks(steps).removeprefix("blocks ").removeprefix("block "),
        f"{elapsed_ms / blocks:.1f}",
        f"{sum(step.dirty_fraction for step in steps) / len(steps):.3f}",
        f"{rewritten / before if before else 0.0:.3f}",
        human_bytes(sum(step.appended_bytes for step in steps) / blocks),
        f"{human_bytes(changed / elapsed_ms * 1e3 if elapsed_ms else 0.0)}/s",
        regime.value,
    )


def _group_row(group: GroupReport, unicode: bool) -> tuple[str, ...]:
    if group.position_heat is not None:
        window = heat_text(group.position_heat.tolist(), unicode)
    elif (group.position_piece_bytes or 0) >= FINEST_BYTES:
        window = f"(granules over {group.position_piece_bytes} bytes mix it)"
    else:
        window = ""
    return (
        group.pattern,
        str(group.leaf_count),
        human_bytes(group.size_bytes),
        f"{group.dirty_fraction:.3f}",
        str(group.never_written_count),
        group.classification.rule.value,
        window,
    )


def _print_strip(inspection: Inspection, unicode: bool) -> None:
    trace = inspection.trace
    first_step = inspection.classification.first_step
    shares = trace.heat(cells_of(console.width, _STRIP_ROWS), first_step).tolist()
    console.print()
    seen = _blocks(inspection.present)
    console.print(f"the slot, {seen}: {legend(unicode)}", markup=False, highlight=False)
    for row in strip(shares, trace.segments.extent_bytes, _STRIP_ROWS, unicode):
        console.print(row)


def _blocks(steps: Sequence[Writes]) -> str:
    first, last = steps[0].block_index, steps[-1].block_index + steps[-1].block_count - 1
    return f"block {first}" if first == last else f"blocks {first} to {last}"


def _step_jsonable(step: Writes) -> dict[str, Any]:
    return {
        "block_index": step.block_index,
        "block_count": step.block_count,
        "elapsed_ms": step.elapsed_ms,
        "regime": regime_of(step).value,
        "dirty_fraction": step.dirty_fraction,
        "rewritten_fraction": step.rewritten_fraction,
        "written_before_bytes": step.written_before_bytes,
        "appended_bytes": step.appended_bytes,
        "rewritten_bytes": step.rewritten_bytes,
        "dirty_rate_bytes_per_s": step.dirty_rate_bytes_per_s,
    }


def _group_jsonable(group: GroupReport) -> dict[str, Any]:
    heat = group.position_heat
    return {
        "pattern": group.pattern,
        "leaves": group.leaf_count,
        "never_written_leaves": group.never_written_count,
        "size_bytes": group.size_bytes,
        "dirty_fraction": group.dirty_fraction,
        "update_rule": group.classification.rule.value,
        "evidence": group.classification.evidence,
        "position_heat": None if heat is None else heat.tolist(),
    }
