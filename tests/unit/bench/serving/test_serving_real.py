"""The real engine's proof: its choosers, periods, counts and checks, and that its loop is asked.

No figure of time is held against anything here: `python -m bench.serving real` does that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from bench.serving import cli
from bench.serving.policies.table import BLIND, NO_KNOB, PIN_QUEUE, WORLDLINE
from bench.serving.real import measured
from bench.serving.real.arms import ARMS, BULK, INTERACTIVE, Arm, in_turn
from bench.serving.real.choosers import PinQueue, RoundRobin
from bench.serving.real.engine import Engine, Workload
from bench.serving.real.outcome import Outcome, Seen, Trials, outcome, quantile
from bench.serving.real.report import checks, document, tables
from bench.serving.real.rung import Rung, rungs
from bench.serving_overhead.cli import SLIVER
from services.engine.device import CPU_DEVICE
from services.engine.expected import Expected
from services.engine.model.causal import CausalWorld
from services.engine.model.weights import build_weights
from services.engine.schedule import Choice, Chooser, Claim, Guard, Idle, pick
from services.engine.worker import Worker
from worldline.contract import ServiceClass

C1 = Claim(INTERACTIVE, ServiceClass.C1_INTERACTIVE, 0.0, 1.0, 0.0, quantum_s=0.1, left_s=0.4)
C3 = Claim(BULK, ServiceClass.C3_BULK, 0.0, math.inf, 0.0, quantum_s=0.1, left_s=0.4)
RUNG = Rung("tight", 0.6, 0.148, 0.006, 0.154)


def chosen(chooser: Chooser, claims: list[Claim], now: float = 0.5) -> str | None:
    """Whose quantum it is; None where nobody's."""
    choice = chooser(claims, now)
    return choice.session_id if isinstance(choice, Choice) else None


def test_round_robin_gives_a_quantum_each_in_turn() -> None:
    chooser = RoundRobin()
    claims = [C1._replace(mid_block=True), C3]
    turns = [chosen(chooser, claims) for _ in range(4)]
    assert turns == [INTERACTIVE, BULK, INTERACTIVE, BULK]


def test_a_turn_without_a_claim_is_not_saved_up() -> None:
    chooser = RoundRobin()
    assert [chosen(chooser, [C3]) for _ in range(3)] == [BULK] * 3
    turns = [chosen(chooser, [C3, C1]) for _ in range(3)]
    assert turns == [INTERACTIVE, BULK, INTERACTIVE]


def test_a_pinned_session_shares_nothing() -> None:
    chooser = PinQueue(INTERACTIVE)
    assert chosen(chooser, [C3, C1]) == INTERACTIVE
    assert chosen(chooser, [C3]) is None
    waiting = chooser([C3, C1._replace(release_at=0.9)], 0.5)
    assert isinstance(waiting, Idle)
    assert waiting.until == 0.9


@pytest.mark.parametrize("make", [RoundRobin, lambda: PinQueue(INTERACTIVE), lambda: pick])
def test_no_chooser_runs_what_is_to_come_and_all_go_on_with_a_lone_block(
    make: Callable[[], Chooser],
) -> None:
    assert chosen(make(), [C1._replace(release_at=0.9)]) is None
    assert chosen(make(), [C1._replace(prospective=True)]) is None
    assert chosen(make(), []) is None
    assert chosen(make(), [C1._replace(mid_block=True)]) == INTERACTIVE


def test_every_arm_begins_once() -> None:
    starts = [in_turn(trial)[0].name for trial in range(len(ARMS))]
    assert sorted(starts) == sorted(arm.name for arm in ARMS)
    assert all(set(in_turn(trial)) == set(ARMS) for trial in range(5))


#: Seconds of a quantum; the last of a block no shorter than half of the others.
steps = st.floats(1e-3, 1.0)


@given(steps, st.floats(0.5, 3.0))
def test_the_tight_period_has_no_room_for_bulk_and_the_wide_one_has(
    step_s: float, closing: float
) -> None:
    expected, guard = Expected(step_s, step_s * closing), Guard()
    tight, wide = rungs(expected, 4, 3, guard)
    full_s = expected.block_s(4)
    assert full_s < tight.period_s < guard.bound_s(full_s)
    assert tight.left_full_s < step_s <= tight.left_floor_s
    assert wide.left_full_s >= step_s
    assert guard.allows(step_s, wide.period_s - guard.bound_s(full_s) + 1e-12)


def seen(at: float, index: int, *, late_ms: float = 0.0, skipped: int = 0) -> Seen:
    return Seen(at, index, late_ms, skipped, degraded=index % 2 == 1)


def test_only_what_ends_within_the_trial_is_counted() -> None:
    interactive = [
        seen(0.9, 0, late_ms=9.0, skipped=5),
        seen(1.5, 1),
        seen(2.6, 2, late_ms=1.0),
        seen(3.0, 3, skipped=2),
        seen(3.1, 4, late_ms=1.0),
    ]
    bulk = [seen(at, number) for number, at in enumerate((0.5, 1.0, 2.0, 3.5))]
    found = outcome(interactive, bulk, [5.0], first=1, since=1.0, until=3.0)
    assert (found.blocks, found.missed, found.skipped, found.degraded) == (3, 1, 2, 2)
    assert found.bulk_blocks == 2
    assert found.missed_share == pytest.approx(1 / 3)


def test_a_quantile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(1, 21)]
    assert [quantile(values, share) for share in (0.0, 0.5, 0.95, 1.0)] == [1, 10, 19, 20]


def row(arm: str, missed: int, bulk_blocks: int) -> Trials:
    one = Outcome(100, missed, 2 * missed, 50, bulk_blocks, (10.0, 20.0))
    return Trials(arm, (one, replace(one, quanta_ms=(30.0,))))


GOOD = {
    WORLDLINE: row(WORLDLINE, 1, 6),
    PIN_QUEUE: row(PIN_QUEUE, 1, 0),
    BLIND: row(BLIND, 20, 6),
    NO_KNOB: row(NO_KNOB, 1, 2),
}


def met(**changed: Trials) -> list[bool]:
    rows = {**GOOD, **{each.arm: each for each in changed.values()}}
    return [check.met for check in checks([(RUNG, list(rows.values()))])]


def test_each_check_can_fail() -> None:
    assert met() == [True, True, True, True]
    assert met(ours=row(WORLDLINE, 12, 6)) == [False, True, True, True]
    assert met(blind=row(BLIND, 1, 6)) == [False, False, True, True]
    assert met(pinned=row(PIN_QUEUE, 1, 1)) == [True, True, False, True]
    assert met(ours=row(WORLDLINE, 1, 0)) == [True, True, False, False]
    assert met(none=row(NO_KNOB, 1, 6)) == [True, True, True, False]


def test_table_and_document_say_the_same() -> None:
    found = [(RUNG, list(GOOD.values()))]
    text = tables(found, 6)
    line = next(line for line in text.splitlines() if line.startswith("| blind"))
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells == [BLIND, "20.0", "20.0", "100.0", "40.0", "50", "6.0", "20.0", "30.0"]
    written = json.loads(json.dumps(document(found, {"seeds": [0]})))
    (rung,) = written["rungs"]
    assert rung["period_ms"] == 600
    assert [arm["arm"] for arm in rung["arms"]] == list(GOOD)
    assert rung["arms"][2]["trials"][0]["missed"] == 20
    assert all(check["met"] for check in written["checks"])


async def test_the_engines_loop_asks_the_arms_chooser() -> None:
    """However slow the machine: a bulk session that is never chosen has no block."""
    asked: list[float] = []

    class Noted(PinQueue):
        """Notes when it was asked."""

        def __call__(self, claims: Iterable[Claim], now: float, **more: Any) -> Choice | Idle:
            asked.append(now)
            return super().__call__(claims, now, **more)

    arm = Arm("noted", lambda: Noted(INTERACTIVE), knob=True)
    worker = Worker(threads=1)
    try:
        engine = Engine(CausalWorld(build_weights(SLIVER, 0, CPU_DEVICE.torch_device)), worker)
        expected = await engine.measured(3)
        load = Workload(period_s=0.02, floor_steps=2, periods=8, bulk_blocks=2)
        found = await engine.trial(arm, load, seed=1)
    finally:
        worker.close()
    assert expected.step_s > 0
    assert asked
    assert found.bulk_blocks == 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--preset", "huge"], "unknown preset"),
        (["--device", "abacus"], "abacus"),
        (["--floor", "3"], "1 to 2"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_measured(
    arguments: list[str], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The runner's stderr is closed afterwards; later tests' logs must not go there.
    monkeypatch.setattr(measured, "configure_logs", lambda *_, **__: None)
    path = tmp_path / "real.json"
    result = CliRunner().invoke(cli.app, ["real", *arguments, "--json", str(path)])
    assert result.exit_code == 2
    # The message is in a box as wide as the terminal.
    assert word in " ".join(result.output.replace("│", " ").split())
    assert not path.exists()
