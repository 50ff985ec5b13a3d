"""`worldline decide`: answers, numbers, exit statuses, errors and the grid's forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from worldline.admissibility.codec import Codec
from worldline.admissibility.condition import Condition, PathCost, Transfer
from worldline.admissibility.fleet import fluid_moves_max, horizon_bytes
from worldline.cli.app import app

GBIT_PER_S = 1e9 / 8
STATE_BYTES = 1_670_124_960


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["decide", *arguments])


def decided(*arguments: str) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    document: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (3 if document["decision"] == "REJECT" else 0)
    return document


def test_the_papers_object_is_admitted() -> None:
    found = decided()
    assert (found["decision"], found["motion"]["motion"]) == ("ADMIT", "MOVE")
    condition = Condition(Transfer(STATE_BYTES, 400.0, 0.93e9), PathCost(94.8 * GBIT_PER_S))
    assert found["verdict"]["numbers"] == pytest.approx(condition.numbers())


@pytest.mark.parametrize(
    ("rate", "decision", "reason"),
    [
        # Section 6.3: the gates are 33 Gb/s frozen and 41 Gb/s live at 400 ms.
        ("41Gb/s", "ADMIT", None),
        ("40Gb/s", "REJECT", "BANDWIDTH_TOO_LOW"),
        ("33Gb/s", "REJECT", "HORIZON_TOO_SHORT"),
    ],
)
def test_the_live_gate(rate: str, decision: str, reason: str | None) -> None:
    found = decided("--rate", rate)
    assert (found["decision"], found["verdict"]["reason"]) == (decision, reason)


@pytest.mark.parametrize(("rate", "decision"), [("33.5Gb/s", "ADMIT"), ("33.3Gb/s", "REJECT")])
def test_the_frozen_gate(rate: str, decision: str) -> None:
    assert decided("--rate", rate, "--dirty-rate", "0")["decision"] == decision


def test_a_reject_says_what_would_do() -> None:
    assert "freeze the source" in invoke("--rate", "37Gb/s").stdout
    wet = invoke("--rate", "37Gb/s", "--setup", "39ms").stdout
    assert "longer horizon" in wet
    lines = invoke("--rate", "25Gb/s").stdout.splitlines()
    assert lines[0].startswith("MOVE: ")
    assert lines[1].startswith("REJECT (HORIZON_TOO_SHORT): 1.67 GB: ")


def test_a_codec_carries_25_gbps_over_the_gate() -> None:
    # Section 4.1: 553 ms raw, some 370 ms with the codec.
    path = ("--rate", "25Gb/s", "--setup", "19ms", "--dirty-rate", "0")
    raw = decided(*path)
    assert raw["verdict"]["numbers"]["t_migrate_ms"] == pytest.approx(553, abs=1)
    codec = Codec(0.644, 230e9, 252e9)
    named = ("--codec-ratio", "0.644", "--codec-rate", "230GB/s", "--decode-rate", "252GB/s")
    found = decided(*path, *named)
    expected = codec.condition(Transfer(STATE_BYTES, 400.0), PathCost(25 * GBIT_PER_S, 19.0))
    assert (raw["decision"], found["decision"]) == ("REJECT", "ADMIT")
    assert found["verdict"]["numbers"] == pytest.approx(expected.numbers())
    assert "1.67 GB encoded" in found["verdict"]["explanation"]


def test_a_codec_decodes_as_it_encodes_unless_told() -> None:
    codec = ("--codec-ratio", "0.8", "--codec-rate", "10GB/s")
    assert decided(*codec) == decided(*codec, "--decode-rate", "10GB/s")
    assert decided(*codec) != decided(*codec, "--decode-rate", "20GB/s")


def test_where_digests_are_placed_counts() -> None:
    def t_migrate_ms(*placed: str) -> float:
        named = ("--rate", "97.95Gb/s", "--digest-rate", "52.6GB/s", *placed)
        return float(decided(*named)["verdict"]["numbers"]["t_migrate_ms"])

    sequential = t_migrate_ms("--verify", "sequential")
    pipelined = t_migrate_ms("--verify", "pipelined")
    assert sequential > pipelined > t_migrate_ms("--verify", "tail")
    assert t_migrate_ms() == pipelined


@pytest.mark.parametrize(
    ("arguments", "decision"),
    [
        (("--reduced-to", "1GB"), "REDUCE"),
        (("--replay-step", "10ms", "--history-steps", "40"), "REPLAY"),
        (("--replay-step", "10ms", "--history-steps", "41"), "ADMIT"),
        (("--restart-ok",), "RESTART"),
        (("--restart-ok", "--reduced-to", "1GB"), "REDUCE"),
    ],
)
def test_an_open_escape_is_the_answer(arguments: tuple[str, ...], decision: str) -> None:
    found = decided(*arguments, "--rate", "100Gb/s")
    assert found["decision"] == decision
    assert (found["verdict"] is None) == (decision != "ADMIT")
    assert invoke(*arguments, "--rate", "1Gb/s").exit_code == (3 if decision == "ADMIT" else 0)


@pytest.mark.parametrize(
    ("arguments", "option", "way_out"),
    [
        (("--state", "20"), "--state", "needs a unit"),
        (("--rate", "41GB"), "--rate", "write 41Gb/s"),
        (("--rate", ""), "--rate", "such as 41Gb/s"),
        (("--horizon", ""), "--horizon", "such as 400ms"),
        (("--dirty-rate", "fast"), "--dirty-rate", "0 for a frozen source"),
        (("--setup", "x"), "--setup", "or 0"),
        (("--codec-ratio", "3", "--codec-rate", "1GB/s"), "--codec-ratio", "at most 2"),
        (("--codec-ratio", "nan", "--codec-rate", "1GB/s"), "--codec-ratio", "finite"),
        (("--codec-ratio", "0.5"), "--codec-rate", "say its --codec-rate"),
        (("--codec-rate", "1GB/s"), "--codec-rate", "add --codec-ratio"),
        (("--verify", "tail"), "--verify", "say its --digest-rate"),
        (("--reduced-to", "2GB"), "--reduced-to", "leave it out"),
        (("--replay-step", "1ms"), "--history-steps", "both or neither"),
        (("--history-steps", "1"), "--replay-step", "both or neither"),
        (("--slo", "1s"), "--slo", "add --grid"),
        (("--warm-share", "0"), "--warm-share", "add --grid"),
        (("--figure", "x.png"), "--figure", "add --grid"),
        (("--grid", "--rate", "1Gb/s"), "--rate", "use --fabric"),
        (("--grid", "--history-steps", "0"), "--history-steps", "use --fabric"),
        (("--grid", "--restart-ok"), "--restart-ok", "use --fabric"),
        (("--grid", "--fabric", "lab"), "--fabric", "NAME=RATE"),
        (("--grid", "--fabric", "=1Gb/s"), "--fabric", "NAME=RATE"),
        (("--grid", "--fabric", "a\tb=1Gb/s"), "--fabric", "printable"),
        (("--grid", "--fabric", "a=1Gb/s", "--fabric", "a=2Gb/s"), "--fabric", "one name"),
        (("--grid", "--slo", "400"), "--slo", "needs a unit"),
        (("--grid", "--warm-share", "1.1"), "--warm-share", "at most 1"),
        (("--grid", "--figure", "x.gif"), "--figure", ".png or .svg"),
        (("--grid", "--figure", "/nowhere/x.png"), "--figure", "no directory"),
    ],
)
def test_wrong_input_names_the_option_and_the_way_out(
    arguments: tuple[str, ...], option: str, way_out: str
) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert f"[{option}]" in result.stderr
    assert way_out in result.stderr
    assert "Traceback" not in result.output


def test_the_grids_json_agrees_with_the_arithmetic_cell_by_cell() -> None:
    rates = {"slow": 21.5, "lab": 100.0, "fast": 400.0}
    rows = [text for name, rate in rates.items() for text in ("--fabric", f"{name}={rate}Gb/s")]
    columns = ["--slo", "150ms", "--slo", "400ms", "--slo", "1.5s"]
    result = invoke("--grid", *rows, *columns, "--setup", "57ms", "--json")
    assert result.exit_code == 0
    cells = json.loads(result.stdout)["cells"]
    assert [(each["fabric"], each["horizon_ms"]) for each in cells] == [
        (name, horizon_ms) for name in rates for horizon_ms in (150.0, 400.0, 1500.0)
    ]
    for each in cells:
        rate, horizon_ms = rates[each["fabric"]] * GBIT_PER_S, each["horizon_ms"]
        condition = Condition(Transfer(STATE_BYTES, horizon_ms, 0.93e9), PathCost(rate, 57.0))
        c_bytes = horizon_bytes(STATE_BYTES, 0.93e9, horizon_ms)
        fits = condition.admissible and fluid_moves_max(c_bytes, rate, horizon_ms, 57.0) >= 2
        choice = "MIGRATE" if fits else "PREWARM" if condition.admissible else "REJECT"
        assert each["choice"] == choice, each
        numbers = {name: each["numbers"][name] for name in condition.numbers()}
        assert numbers == pytest.approx(condition.numbers())
    assert {each["choice"] for each in cells} == {"MIGRATE", "PREWARM", "REJECT"}


def test_the_grid_as_a_table() -> None:
    result = invoke("--grid", "--at-once", "1", "--fabric", "lab=41Gb/s", "--slo", "400ms")
    lines = result.stdout.splitlines()
    assert lines[1].split() == ["FABRIC", "RATE", "400", "ms"]
    assert lines[2].split() == ["lab", "41.00", "Gb/s", "migrate"]
    prewarmed = invoke("--grid", "--fabric", "lab=41Gb/s", "--slo", "400ms").stdout
    assert "lab at 400 ms: one move fits, but only 1.00 of 2 at once" in prewarmed


def test_the_grid_as_figures(tmp_path: Path) -> None:
    png, svg = tmp_path / "grid.png", tmp_path / "grid.svg"
    named = ("--fabric", "lab $a$=100Gb/s", "--fabric", "old=10Gb/s", "--slo", "400ms")
    result = invoke("--grid", *named, "--figure", str(png), "--figure", str(svg))
    assert result.exit_code == 0, result.stderr
    with Image.open(png) as image:
        image.load()
        assert image.format == "PNG"
        colours = {colour[:3] for _, colour in image.getcolors(1 << 20) or []}  # type: ignore[index]
    assert {(168, 213, 172), (232, 180, 168)} <= colours  # migrate and reject
    drawn = svg.read_text()
    for text in ("lab $a$", "old", "migrate", "reject", "needs 40.84 Gb/s", "400 ms", "fabric"):
        assert f">{text}</text>" in drawn, text


def test_help_says_exit_statuses_and_options() -> None:
    shown = invoke("--help").output
    for text in ("Exit status 0 admitted", "3 rejected", "--grid", "--figure", "41Gb/s"):
        assert text in shown
