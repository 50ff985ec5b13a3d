"""The overhead's arithmetic, and a short run of the real thing."""

from __future__ import annotations

import pytest

from bench.decisions.parts import Moment
from bench.serving_overhead.cli import SLIVER
from bench.serving_overhead.report import Side, rows
from bench.serving_overhead.served import Served
from bench.serving_overhead.stamped import Stamps

MS = 1_000_000


def test_gaps_lie_between_passes() -> None:
    stamps = Stamps()
    for begin, end, opening in ((0, 10, True), (13, 20, False), (27, 30, True)):
        stamps.opening.append(opening)
        stamps.begun.append(Moment(begin, begin * 2))
        stamps.ended.append(Moment(end, end * 2))
    assert stamps.passes_ns() == [10, 7, 3]
    assert stamps.gaps_ns() == [3, 7]
    assert stamps.block_gaps_ns() == [7]
    assert stamps.span_ns() == 30
    assert stamps.gaps_cpu_ns() == [6, 14]


def test_what_is_added_is_the_gap_less_the_bare_ones() -> None:
    bare = Side(
        passes=[2 * MS] * 4, gaps=[MS // 10] * 3, gaps_cpu=[MS // 10] * 3, spans=[2.1 * MS] * 3
    )
    served = Side(
        passes=[2 * MS] * 4,
        gaps=[MS // 4, MS // 4, MS],
        gaps_cpu=[MS // 5] * 3,
        block_gaps=[MS],
        spans=[2.3 * MS, 2.2 * MS, 9.0 * MS],
        loop_cpu=[2 * MS // 5, 2 * MS // 5],
    )
    handed = Side(gaps=[MS // 5] * 3)
    found = {row.spec.name: row for row in rows(bare, handed, served, turns=2)}
    assert found["overhead.added"].value == pytest.approx(0.15)
    assert found["overhead.added"].ok is True
    assert found["overhead.added-p99"].value == pytest.approx(0.9)
    assert found["overhead.added-mean"].value == pytest.approx(0.4)
    assert found["overhead.span"].value == pytest.approx(0.2)
    assert found["overhead.block-gap"].value == pytest.approx(1.0)
    assert found["overhead.cpu"].value == pytest.approx(0.2 + 0.1)
    assert found["overhead.handed-gap"].value == pytest.approx(0.2)
    assert found["overhead.pass-ratio"].value == pytest.approx(1.0)
    served.gaps, served.block_gaps = [MS] * 3, []
    slow, *_, block_gap = rows(bare, handed, served, turns=2)
    assert slow.ok is False
    assert block_gap.value is None
    assert block_gap.skipped


@pytest.mark.parametrize("sessions", [1, 3])
async def test_both_sides_run_every_quantum(sessions: int) -> None:
    served = Served(SLIVER, sessions)
    blocks = 2 * sessions
    async with served.running():
        for _ in range(2):
            await served.bare_turn(blocks)
            assert len(served.stamps.passes_ns()) == blocks * SLIVER.quanta_per_block
            await served.handed_turn(blocks)
            assert len(served.stamps.gaps_ns()) == blocks * SLIVER.quanta_per_block - 1
            assert await served.served_turn(blocks) > 0
            assert len(served.stamps.passes_ns()) == blocks * SLIVER.quanta_per_block
            assert all(gap > 0 for gap in served.stamps.gaps_ns())
            assert len(served.stamps.block_gaps_ns()) == blocks - 1
