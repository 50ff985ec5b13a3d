"""`worldline inspect`: strips, tables, JSON and the figure, from a trace made by hand."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

from tests.unit.state.traces import Window
from worldline.cli import inspect_output, output
from worldline.cli.figures import write_figure
from worldline.cli.heat import cells_of, heat_text, legend, level_of, strip
from worldline.cli.heat_figure import draw_heat
from worldline.cli.inspecting import _granule_bytes
from worldline.contract import Contract, ServiceClass
from worldline.errors import DeadlineExceeded, InvalidInput, WorldlineError
from worldline.sdk import Inspected
from worldline.sdk.records import SessionInfo, World
from worldline.state.inspection import inspection_of


def inspected(
    blocks: int = 6, granule: int = 256, stopped: WorldlineError | None = None
) -> Inspected:
    trace = Window(frames=6, step=3, sink=0, rows=4, frame_bytes=512).trace(blocks, granule)
    info = SessionInfo(
        session_id="s1",
        epoch=1,
        engine_id="e1",
        node_id="node-1",
        engine_address="here:1",
        contract=Contract(service_class=ServiceClass.C1_INTERACTIVE, horizon_ms=1000.0),
        world=World("tiny", 7),
        state="live",
        state_bytes=0,
        slot=None,
    )
    return Inspected(info, 2, inspection_of(trace), stopped)


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch):
    """What a terminal of that width gets."""

    def show(width: int, what: Inspected) -> str:
        to = io.StringIO()
        console = Console(file=to, width=width, soft_wrap=True)
        for module in (inspect_output, output):
            monkeypatch.setattr(module, "console", console)
        inspect_output.print_inspected(what)
        return to.getvalue()

    return show


@given(st.floats(0, 1))
def test_a_level_is_zero_only_of_nothing(share: float) -> None:
    assert (level_of(share) == 0) == (share == 0)
    assert 8 * share <= level_of(share) or share == 0
    assert level_of(share) <= 8


def test_heat_has_a_character_a_share_with_and_without_block_characters() -> None:
    assert heat_text([0, 0.01, 0.5, 1]) == "·▁▄█"
    assert heat_text([0, 0.01, 0.5, 1], unicode=False) == ".148"
    assert legend(unicode=False).isascii()


@given(st.integers(1, 300), st.integers(1, 5))
def test_a_strip_fills_its_rows_and_no_more(width: int, rows: int) -> None:
    cells = cells_of(width, rows)
    lines = list(strip([0.5] * cells, 10**6, rows))
    assert len(lines) == rows
    assert len({len(line.plain) for line in lines}) == 1
    assert len(lines[0].plain) <= max(width, 12)
    assert sum(line.plain.count("▄") for line in lines) == cells


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_screen_says_what_the_trace_showed(printed, width: int, capsys) -> None:
    shown = printed(width, inspected())
    assert "window rewrite: blocks 2 to 5 rewrote 1.000 of what had been written" in shown
    assert "before them blocks 0 to 1 filled it" in shown
    assert "dirty     0.500 of 24.58 kB a block, D = 30.72 kB/s" in shown
    assert "12.29 kB (50.0%) in 1 leaf: the content that the session began with" in shown
    tables, strip_shown = shown.split("the slot, blocks 2 to 5", 1)
    rows = {line.split()[0]: line for line in tables.splitlines() if line.strip()}
    assert "never written" in rows["unwired"]
    assert "window rewrite" in rows["kv"]
    assert "rewrites" in rows["2"]
    assert "appends" in rows["0"]
    slot = strip_shown.splitlines()[1:4]
    cells = "".join(line[11:] for line in slot)
    assert cells.count("█") == pytest.approx(cells.count("·"), abs=2)
    assert all(len(line) <= width for line in slot)
    assert ("too narrow" in capsys.readouterr().err) == (width == 60)


def test_a_window_is_drawn_where_granules_can_tell(printed) -> None:
    assert "██████" in printed(200, inspected())
    assert "(granules over 512 bytes mix it)" in printed(200, inspected(granule=1024))


def test_an_early_end_is_said(printed) -> None:
    error = DeadlineExceeded("nobody plays it", reason="NO_BOUNDARY")
    shown = printed(120, inspected(stopped=error))
    assert "stopped   NO_BOUNDARY: nobody plays it" in shown


def test_json_has_every_figure() -> None:
    found = json.loads(json.dumps(inspect_output.inspected_jsonable(inspected())))
    assert found["update_rule"] == "window rewrite"
    assert found["dirty_fraction"] == 0.5
    assert found["rewritten_fraction"] == 1.0
    assert found["never_written"] == {"size_bytes": 12288, "leaves": ["unwired"]}
    assert [step["regime"] for step in found["steps"]] == ["appends"] * 2 + ["rewrites"] * 4
    assert [group["pattern"] for group in found["groups"]] == ["kv", "unwired"]
    assert found["groups"][0]["position_heat"] == [1.0] * 6
    assert len(found["heat"]) == 256
    assert found["stopped"] is None


def test_the_figure_shows_the_hot_half_and_the_cold_one(tmp_path: Path) -> None:
    path = tmp_path / "heat.png"
    write_figure(draw_heat(inspected().inspection, "s1", "--png"), path)
    with Image.open(path) as image:
        colours = image.convert("RGB").getcolors(1 << 20)
    assert colours is not None
    cold = sum(count for count, (red, _, _) in colours if red < 5)
    hot = sum(count for count, (_, green, blue) in colours if green > 240 and blue < 180)
    assert hot > 50_000, "the window's colour"
    assert cold > 50_000, "the unwired cache's colour"


def test_a_granule_is_a_size_that_is_a_power_of_two() -> None:
    assert [_granule_bytes(text) for text in ("0", "128B", "2KiB", "1MiB")] == [
        0,
        128,
        2048,
        1 << 20,
    ]
    for text in ("300B", "2kB", "2048"):
        with pytest.raises(InvalidInput) as refused:
            _granule_bytes(text)
        assert refused.value.field == "--granule"
