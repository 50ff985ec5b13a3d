"""How many sessions keep a period: the counting, what admission says beside it, and the loop."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.serving import cli
from bench.serving.real import measured, residents
from bench.serving.real.engine import Engine
from bench.serving.real.outcome import Seen
from bench.serving.real.residents import Question, kept
from bench.serving_overhead.cli import SLIVER
from services.engine.device import CPU_DEVICE
from services.engine.model.causal import CausalWorld
from services.engine.model.weights import build_weights
from services.engine.worker import Worker
from worldline.admissibility.device_profile import DeviceProfile, ShapeProfile
from worldline.admissibility.sessions import SessionDemand, SessionFit
from worldline.contract import Contract, ServiceClass
from worldline.errors import InvariantBroken

QUESTION = Question(
    preset="tiny",
    device="cpu",
    threads=1,
    period_ms=400.0,
    periods=8,
    sessions_most=3,
    missed_most=0.01,
    guard_band=0.05,
)


def blocks(late_ms: list[float], skipped: int = 0) -> list[Seen]:
    """What one client saw; the skips before its first block."""
    return [
        Seen(float(index), index, late, skipped if index == 0 else 0, degraded=False)
        for index, late in enumerate(late_ms)
    ]


def fit(count: int, block_ms: float) -> SessionFit:
    """`count` sessions of 400 ms whose block is four quanta."""
    demand = SessionDemand("tiny/full", 1, QUESTION.contract)
    device = DeviceProfile(1 << 40, 0.05, {"tiny/full": ShapeProfile(block_ms / 4, 3)})
    return SessionFit(demand, (demand,) * (count - 1), device)


def test_the_worst_session_decides() -> None:
    punctual, late = blocks([0.0] * 200), blocks([0.0] * 97 + [1.5, 3.0, 2.0])
    found = kept([punctual, late], fit(2, 100))
    assert (found.sessions, found.blocks, found.missed, found.skipped) == (2, 300, 3, 0)
    assert (found.missed_share_worst, found.late_ms_worst) == (0.03, 3.0)
    assert not found.within(0.02)
    assert found.within(0.03)


def test_a_skipped_release_is_never_within() -> None:
    assert not kept([blocks([0.0] * 50, skipped=1)], fit(1, 100)).within(1.0)


def test_admissions_answer_stands_beside() -> None:
    shown = [kept([blocks([0.0])] * count, fit(count, 120)) for count in (1, 2, 3, 4)]
    assert [one.admitted for one in shown] == [True, True, True, False]
    assert [round(one.utilization_wanted, 3) for one in shown] == [0.3, 0.6, 0.9, 1.2]


def test_a_session_that_showed_nothing_is_no_session() -> None:
    with pytest.raises(InvariantBroken, match="no block"):
        kept([blocks([0.0]), []], fit(2, 100))


def test_sessions_are_the_contracts_and_never_degraded() -> None:
    contract = QUESTION.contract
    assert (contract.period_ms, contract.quality_floor_steps) == (400.0, 0)
    assert contract.service_class is ServiceClass.C1_INTERACTIVE


async def test_sessions_play_side_by_side() -> None:
    worker = Worker(threads=1)
    try:
        engine = Engine(CausalWorld(build_weights(SLIVER, 0, CPU_DEVICE.torch_device)), worker)
        await engine.measured(3)
        contract = Contract(ServiceClass.C1_INTERACTIVE, horizon_ms=1_000.0, period_ms=50.0)
        seen = await engine.together(3, contract, periods=8)
    finally:
        worker.close()
    assert len(seen) == 3
    for one in seen:
        # However slow the machine, even if nothing came in time: each block once, the first not.
        indices = [block.block_index for block in one]
        assert all(later == earlier + 1 for earlier, later in pairwise(indices))
        assert 0 not in indices


def test_the_command_tries_until_one_is_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second session of three is late; what is asked for is in the document."""
    monkeypatch.setattr(measured, "configure_logs", lambda *_, **__: None)
    played: list[int] = []

    async def together(engine: Engine, count: int, contract: Contract, periods: int):  # type: ignore[no-untyped-def]
        played.append(count)
        return [blocks([0.0 if count == 1 else 9.0] * periods)] * count

    monkeypatch.setattr(residents, "MEASURED_BLOCKS", 2)
    monkeypatch.setattr(Engine, "together", together)
    path = tmp_path / "residents.json"
    arguments = ["residents", "--period-ms", "60000", "--most", "3", "--json", str(path)]
    result = CliRunner().invoke(cli.app, arguments)
    assert played == [1, 2]
    # Admission would have taken the second, which was late: that is what the status says.
    assert result.exit_code == 1, result.output
    assert "2 sessions" in result.output
    written = json.loads(path.read_text())
    assert written["question"]["period_ms"] == 60_000
    assert [one["missed"] for one in written["tried"]] == [0, 100]
    assert written["closing"]["samples"] >= 1
