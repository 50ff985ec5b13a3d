"""`worldline map`: objects, regions, and figures that say both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner, Result

from worldline.cli import paper
from worldline.cli.app import app
from worldline.cli.map_objects import parse_object, read_objects
from worldline.cli.regime_figure import draw_map
from worldline.cli.regimes import MapObject, Regime, locate
from worldline.errors import InvalidInput

GBIT_PER_S = 1e9 / 8
STATE_BYTES = 1_670_124_960


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["map", *arguments])


@pytest.mark.parametrize(
    ("dirty_rate", "gbit", "regime", "frozen"),
    [
        (0.93e9, 7.4, Regime.HOT, False),  # section 6.3: D = B at some 7.5 Gb/s
        (0.93e9, 7.5, Regime.INADMISSIBLE, False),
        (0.93e9, 40.8, Regime.INADMISSIBLE, True),
        (0.93e9, 40.9, Regime.ADMISSIBLE, True),
        (13.5e9, 108.0, Regime.HOT, True),  # section 6.3: 108 and 141 Gb/s at 10 Hz
        (13.5e9, 141.3, Regime.INADMISSIBLE, True),
        (13.5e9, 141.5, Regime.ADMISSIBLE, True),
        (0.0, 33.5, Regime.ADMISSIBLE, True),
        (0.0, 33.3, Regime.INADMISSIBLE, False),
    ],
)
def test_the_papers_boundaries(
    dirty_rate: float, gbit: float, regime: Regime, frozen: bool
) -> None:
    found = locate(MapObject("x", dirty_rate, gbit * GBIT_PER_S), STATE_BYTES, 400.0)
    assert (found.regime, found.frozen_admissible) == (regime, frozen)


@given(st.floats(0, 1e12), st.floats(1e3, 1e13), st.integers(1, 10**12), st.floats(1, 1e6))
def test_every_object_is_on_its_side_of_both_lines(
    dirty_rate: float, rate: float, state_bytes: int, horizon_ms: float
) -> None:
    found = locate(MapObject("x", dirty_rate, rate), state_bytes, horizon_ms)
    assert (found.regime is Regime.HOT) == (rate <= dirty_rate)
    if found.regime is Regime.ADMISSIBLE:
        assert rate >= found.required_rate_bytes_per_s


def test_the_map_as_figures() -> None:
    result = invoke(
        *("--object", "game <$x$>=0.5GB/s@25Gb/s", "--object", "agent=0@100Gb/s"),
        *("--figure", "map.svg", "--figure", "map.png"),
    )
    assert result.exit_code == 0, result.stderr
    drawn = Path("map.svg").read_text()
    names = ("game &lt;$x$&gt;", "agent (D = 0)")
    regions = (
        "HOT: motion forced,",
        "pre-copy never converges",
        "inadmissible @ 400 ms",
        "pre-copy / motion admissible",
    )
    axes = ("fabric bandwidth B (Gb/s)", "dirty rate D (GB/s)", "deadline gate B = S/H + D")
    for text in (*names, *regions, *axes):
        assert f">{text}</text>" in drawn, text
    assert "MG2" not in drawn
    with Image.open("map.png") as image:
        image.load()
        assert (image.format, image.size) == ("PNG", (1350, 975))
        colours = {colour[:3] for _, colour in image.getcolors(1 << 20) or []}  # type: ignore[index]
    assert {(244, 199, 184), (227, 227, 232), (205, 230, 207)} <= colours  # the three regions


@pytest.mark.parametrize("point", paper.MAP_OBJECTS, ids=lambda point: point.name)
def test_an_object_is_drawn_in_its_region(point: MapObject) -> None:
    located = locate(point, STATE_BYTES, 400.0)
    (axes,) = draw_map([located], STATE_BYTES, 400.0, "--figure").axes
    (drawn,) = [line for line in axes.lines if len(line.get_xdata()) == 1]  # type: ignore[arg-type]
    ((x, y),) = drawn.get_xydata()  # type: ignore[misc]
    assert x == pytest.approx(point.rate_bytes_per_s / GBIT_PER_S)
    lower_edge = axes.get_ylim()[0]
    assert y == pytest.approx(point.dirty_rate_bytes_per_s / 1e9 or lower_edge)
    regions = dict(zip(Regime, axes.collections, strict=True))
    around = [
        regime
        for regime, region in regions.items()
        # A hair above the edge: a region does not contain its own border.
        if any(path.contains_point((x, y * 1.001)) for path in region.get_paths())
    ]
    assert around == [located.regime]


def test_the_same_objects_give_the_same_bytes() -> None:
    for name in ("a.png", "a.svg", "b.png", "b.svg"):
        assert invoke("--figure", name).exit_code == 0
    for ending in ("png", "svg"):
        assert Path(f"a.{ending}").read_bytes() == Path(f"b.{ending}").read_bytes()


def test_without_objects_it_is_the_papers_map_in_both_formats() -> None:
    result = invoke("--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["figures"] == ["regime-map.png", "regime-map.svg"]
    assert all(Path(name).exists() for name in document["figures"])
    regimes = {each["name"]: each["regime"] for each in document["objects"]}
    assert set(regimes) == {each.name for each in paper.MAP_OBJECTS}
    assert regimes["MG2 @ 0.78 Hz"] == regimes["MG2 @ 10 Hz, NVLink"] == "ADMISSIBLE"
    assert regimes["MG2 @ 0.78 Hz, two nodes"] == "INADMISSIBLE"
    assert regimes["MG2 @ 10 Hz"] == "HOT"
    drawn = Path("regime-map.svg").read_text()
    assert all(each.name in drawn for each in paper.MAP_OBJECTS)


def test_objects_of_files_and_options_and_the_paper_come_together() -> None:
    entry = {"name": "b", "dirty_rate": "1GB/s", "rate": "10Gb/s"}
    Path("o.json").write_text(json.dumps({"objects": [entry]}))
    Path("o.toml").write_text('[[objects]]\nname = "b"\ndirty_rate = "1GB/s"\nrate = "10Gb/s"\n')
    same = MapObject("b", 1e9, 1.25e9)
    assert read_objects(Path("o.json"), "--objects") == (same,)
    assert read_objects(Path("o.toml"), "--objects") == (same,)
    assert parse_object("b=1GB/s@10Gb/s", "--object") == same
    result = invoke("--object", "a=0@1Gb/s", "--objects", "o.toml", "--paper", "--json")
    names = [each["name"] for each in json.loads(result.stdout)["objects"]]
    assert names == ["a", "b", *(each.name for each in paper.MAP_OBJECTS)]


@pytest.mark.parametrize(
    ("arguments", "option", "way_out"),
    [
        (("--object", "a"), "--object", "NAME=DIRTY@RATE"),
        (("--object", "a=1GB/s"), "--object", "NAME=DIRTY@RATE"),
        (("--object", "a=1@2Gb/s"), "--object", "needs a unit"),
        (("--object", "=0@2Gb/s"), "--object", "1 to 64 printable"),
        (("--object", "a=0@2Gb/s", "--object", "a=0@3Gb/s"), "--object", "names a twice"),
        (("--state", "1"), "--state", "needs a unit"),
        (("--horizon", "1"), "--horizon", "needs a unit"),
        (("--figure", "x.jpg"), "--figure", ".png or .svg"),
        (("--figure", "/nowhere/x.svg"), "--figure", "no directory"),
        (("--objects", "gone.json"), "--objects", "cannot be read"),
    ],
)
def test_wrong_input_names_the_option_and_the_way_out(
    arguments: tuple[str, ...], option: str, way_out: str
) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert f"[{option}]" in result.stderr
    assert way_out in result.stderr


@pytest.mark.parametrize(
    ("name", "text", "way_out"),
    [
        ("o.json", "{", "is no JSON"),
        ("o.json", "[" * 100_000, "is no JSON"),
        ("o.toml", "=", "is no TOML"),
        ("o.json", "[]", "must have a list `objects`"),
        ("o.json", '{"objects": []}', "must have a list `objects`"),
        ("o.json", '{"objects": [{"name": "a"}]}', "objects[0] must have exactly"),
        (
            "o.json",
            '{"objects": [{"name": "a", "dirty_rate": 0, "rate": "1Gb/s"}]}',
            "objects[0]: dirty_rate must be text",
        ),
        (
            "o.json",
            '{"objects": [{"name": "a", "dirty_rate": "0", "rate": "1Gb"}]}',
            "objects[0] has no unit 'Gb'",
        ),
    ],
)
def test_a_wrong_file_says_where(name: str, text: str, way_out: str) -> None:
    Path(name).write_text(text)
    with pytest.raises(InvalidInput) as caught:
        read_objects(Path(name), "--objects")
    assert way_out in caught.value.message


@pytest.mark.parametrize("command", [("map",), ("decide", "--grid", "--figure", "x.png")])
def test_without_matplotlib_the_way_out_is_said(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = CliRunner().invoke(app, list(command))
    assert result.exit_code == 1
    assert "FIGURES_NOT_INSTALLED [--figure]" in result.stderr
    assert "pip install 'worldline[figures]'" in result.stderr
    assert not list(Path.cwd().iterdir())


def test_nothing_imports_matplotlib_before_a_figure_is_asked_for() -> None:
    code = (
        "import sys, contextlib\n"
        "from worldline.cli.app import app\n"
        "with contextlib.suppress(SystemExit): app(['decide', '--grid'])\n"
        "print('matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_help_says_exit_statuses_and_options() -> None:
    shown = invoke("--help").output
    for text in ("Exit status 0 drawn", "--object", "NAME=DIRTY@RATE", "--figure"):
        assert text in shown
