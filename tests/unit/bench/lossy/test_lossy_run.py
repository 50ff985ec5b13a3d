"""The lossy family on a running world: what is exact, what is seen, and the command."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from bench.lossy import run as lossy_run
from bench.lossy.cli import app
from bench.lossy.handle import Handle, Scene
from bench.lossy.report import table
from bench.lossy.row import Row, rows
from bench.lossy.run import Outcome, all_handles, run
from services.engine.model.causal import CausalWorld
from services.engine.model.config import TINY
from services.engine.model.state import cache_size
from services.engine.model.weights import build_weights

#: A sixth of `tiny`: every handle in a second or two.
MICRO = replace(TINY, layers=3, action_layers=2, heads=2, rows=4, cols=4, ffn_dim=64)
BLOCKS = 2
#: Free of charge: computed again, never written, or dropped by the next block before it reads.
EXACT = {
    "exact: the whole state",
    "exact: every tensor through zlib",
    "rebuild: crossattn_cache from the first frame",
    "evict: what nothing writes",
    "evict: oldest 3 frames",
    "truncate: oldest 3 frames",
    "dedup: frames of the same bits",
    # A head is 96 rows here: its factors would be larger than itself, so it is kept.
    "low rank: 7/8 of the channels",
}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    torch.set_num_threads(1)
    world = CausalWorld(build_weights(MICRO, 0, torch.device("cpu")))
    return {f"{one.family}: {one.name}": one for one in run(world, 1, 3, BLOCKS)}


def test_every_lossy_handle_is_seen_at_the_next_block(outcomes: dict[str, Outcome]) -> None:
    lossy = {name: one for name, one in outcomes.items() if name not in EXACT}
    assert {name.split(":")[0] for name in lossy} == {
        "probe", "evict", "truncate", "int8", "fp8", "low rank", "dedup",
    }  # fmt: skip
    assert [name for name, one in lossy.items() if one.visible_at != 1] == []
    assert [name for name, one in lossy.items() if one.frames_recovered] == []
    assert [name for name, one in lossy.items() if one.state_recovered] == []
    assert all(max(one.divergence_db) > 2.0 for one in lossy.values())


def test_what_costs_nothing_shows_nothing(outcomes: dict[str, Outcome]) -> None:
    found = {name for name, one in outcomes.items() if one.visible_at is None}
    assert found == EXACT
    assert all(outcomes[name].state_recovered for name in EXACT)
    assert outcomes["exact: the whole state"].differing_bytes == 0
    assert outcomes["exact: every tensor through zlib"].differing_bytes == 0
    # Not the bytes of the source, though no frame ever tells: only the model knows that.
    assert outcomes["evict: oldest 3 frames"].differing_bytes > 0


def test_savings_are_counted_in_bytes(outcomes: dict[str, Outcome]) -> None:
    caches_bytes = cache_size(MICRO).size_bytes
    whole = outcomes["exact: the whole state"]
    assert whole.saved_bytes == 0
    spared = {name: one.saved_bytes for name, one in outcomes.items()}
    windows = sum(
        spared[f"evict: {name}"] for name in ("kv_cache", "kv_cache_mouse", "kv_cache_keyboard")
    )
    assert spared["evict: all frames"] == windows
    assert spared["evict: oldest 3 frames"] * 2 == windows
    indices_bytes = 3 * MICRO.layers * 2 * 8
    assert windows + spared["evict: crossattn_cache"] + indices_bytes == caches_bytes
    tensors = 8 * MICRO.layers
    eight_bit = (windows + spared["evict: crossattn_cache"]) // 2 - 4 * tensors
    assert spared["int8: a scale for each tensor"] == eight_bit
    assert spared["fp8: a scale for each tensor"] == eight_bit
    assert spared["low rank: 7/8 of the channels"] == 0
    assert all(one.saved_bytes < one.state_bytes for one in outcomes.values())


def test_less_is_milder(outcomes: dict[str, Outcome]) -> None:
    """Orders that are many dB apart; those of neighbouring handles change with the seed."""

    def divergence(name: str) -> float:
        return outcomes[name].divergence_db[0]

    assert divergence("truncate: oldest 4 frames") < divergence("evict: oldest 4 frames")
    assert divergence("low rank: 1/2 of the channels") < divergence("low rank: 1/8 of the channels")
    whole = divergence("dedup: nearest 100 % of frames")
    assert divergence("int8: a scale for each channel") < whole


def test_an_exact_handle_that_is_not_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least damage: one bit of one element that the next block reads."""

    def damage(scene: Scene) -> int:
        scene.state["kv_cache"][0]["v"].view(torch.int16)[0, -1, 0, 0] ^= 1 << 13
        return 0

    monkeypatch.setattr(lossy_run, "all_handles", lambda _: [Handle("exact", "damaged", damage)])
    result = CliRunner().invoke(app, ["--seeds", "1", "--warm-blocks", "2", "--blocks", "1"])
    assert result.exit_code == 1
    assert "damaged" in result.stdout


def test_rows_are_means_of_seeds_and_keep_the_worst() -> None:
    one = Outcome(1, "int8", "all", 10, 100, 5, (60.0, math.inf), state_recovered=True)
    other = replace(one, seed=2, psnr_db=(math.inf, 70.0), differing_bytes=7, state_recovered=False)
    assert rows([one, other]) == [
        Row("int8", "all", 0.1, 7, 1, (20.0, 15.0), 40.0, 1, 1, 2),
    ]
    assert not rows([one, other])[0].is_exact
    exact = replace(one, psnr_db=(math.inf, math.inf))
    assert rows([exact])[0].is_exact
    assert not rows([replace(exact, state_recovered=False)])[0].is_exact
    assert "never" in table(rows([exact]))
    # Identical frames have no PSNR that JSON could say.
    assert json.loads(json.dumps(one.to_json(), allow_nan=False))["psnr_db"] == [60.0, None]


def test_the_command_prints_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [each for each in all_handles(TINY) if each.family in ("exact", "int8")]
    monkeypatch.setattr(lossy_run, "all_handles", lambda _: few)
    document, figure = tmp_path / "lossy.json", tmp_path / "lossy.svg"
    options = ["--seeds", "1", "--warm-blocks", "2", "--blocks", "1"]
    options += ["--json", str(document), "--figure", str(figure)]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    assert all(each.name in result.stdout for each in few)
    content = json.loads(document.read_text())
    assert len(content["rows"]) == len(few)
    assert len(content["outcomes"]) == len(few)
    assert content["rows"][0]["is_exact"] is True
    assert "the same bits" in figure.read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--preset", "nano"], "is none of tiny, small"),
        (["--figure", "x.gif"], "must end in .png or .svg"),
    ],
)
def test_wrong_usage_says_the_way_out(options: list[str], said: str) -> None:
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 2
    assert said in result.stderr
