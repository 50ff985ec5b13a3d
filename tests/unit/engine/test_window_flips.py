"""The window's geometry, and the battery of single-bit flips that it decides (section 3.3)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from bench.flips import cli
from bench.flips.battery import Outcome, battery
from bench.flips.report import verdict
from bench.flips.strata import MEANINGS, CacheFlip, flips
from bench.private import PrivateSession, warm_session, world_of
from services.engine.model import window
from services.engine.model.config import TINY
from services.engine.model.window import Cache, claim, kept
from worldline.errors import InvalidInput

SEED = 7


@pytest.fixture(scope="module")
def session() -> PrivateSession:
    torch.set_num_threads(1)
    return warm_session(world_of("tiny"), SEED, 3)


@pytest.fixture(scope="module")
def outcomes(session: PrivateSession) -> list[Outcome]:
    return battery(session, flips(TINY, session.tree, SEED), blocks=2)


@given(capacity=st.integers(1, 12), counts=st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_a_block_keeps_what_kept_says_and_overwrites_the_rest(
    capacity: int, counts: list[int]
) -> None:
    """Every position holds a number of its own: who is still there after the block?"""
    cache: Cache = {name: torch.zeros(1, capacity, 1, 1) for name in "kv"}
    cache |= {
        f"{name}_end_index": torch.zeros(1, dtype=torch.int64) for name in ("global", "local")
    }
    start = 0
    for count in (min(count, capacity) for count in counts):
        before = cache["k"].flatten().tolist()
        read = kept(int(cache["local_end_index"]), capacity, count)
        begin, end = claim([cache], start, count)
        assert cache["k"].flatten()[:begin].tolist() == before[read.start : read.stop]
        assert end - begin == count
        fresh = torch.arange(start + 1.0, start + count + 1).view(1, count, 1, 1)
        for name in "kv":
            cache[name][:, begin:end] = fresh
        start += count


@pytest.mark.parametrize("cache", ["kv_cache", "kv_cache_mouse", "kv_cache_keyboard"])
def test_a_frame_is_read_where_the_geometry_says_so(session: PrivateSession, cache: str) -> None:
    """A value that is no number spreads to whatever reads it, however little weight it has."""
    read = set()
    for frame in range(TINY.window_frames):
        poisoned = session.copy()
        leaf = poisoned.tree[cache][0]["v"]
        positions = leaf.shape[1] // TINY.window_frames
        leaf[:, frame * positions : (frame + 1) * positions] = float("nan")
        poisoned.play()
        if poisoned.tree["decoder"]["latent"].isnan().any():
            read.add(frame)
    assert read == set(kept(TINY.window_frames, TINY.window_frames, TINY.frames_per_block))


def test_a_battery_has_every_stratum(session: PrivateSession) -> None:
    chosen = flips(TINY, session.tree, SEED)
    strata = Counter((one.part, one.meaning) for one in chosen)
    assert {strata[part, meaning] for part in ("overwritten", "read") for meaning in MEANINGS} == {
        4
    }
    windows = [one for one in chosen if one.part in ("overwritten", "read")]
    assert {one.layer for one in windows if one.cache == "kv_cache"} == set(range(TINY.layers))
    assert {one.index[2] for one in windows if one.cache == "kv_cache"} == set(range(TINY.heads))
    assert chosen == flips(TINY, session.tree, SEED)
    assert chosen != flips(TINY, session.tree, SEED + 1)


def test_what_is_overwritten_before_it_is_read_is_never_seen(outcomes: list[Outcome]) -> None:
    found = [one for one in outcomes if one.flip.part == "overwritten"]
    assert len(found) == 12
    assert [str(one.flip) for one in found if one.visible_at is not None] == []
    assert [str(one.flip) for one in found if one.erased_after != 1] == []


def test_every_sign_and_exponent_that_is_read_is_seen_at_the_next_block(
    outcomes: list[Outcome],
) -> None:
    read = [one for one in outcomes if one.flip.part == "read"]
    found = [one for one in read if one.flip.meaning in ("sign", "exponent")]
    assert len(found) == 8
    assert [str(one.flip) for one in found if one.visible_at != 1] == []
    # The element itself falls out of the window; what was made of it stays.
    assert [str(one.flip) for one in read if one.erased_after is not None] == []


def test_what_lies_outside_the_windows_is_never_erased(outcomes: list[Outcome]) -> None:
    """The paper's remark on the write-once conditioning cache: nothing overwrites it."""
    outside = [one for one in outcomes if one.flip.part in ("conditioning", "unwired")]
    assert len(outside) == 6
    assert [str(one.flip) for one in outside if one.erased_after is not None] == []
    unwired = [one for one in outside if one.flip.part == "unwired"]
    assert [str(one.flip) for one in unwired if one.visible_at is not None] == []


def test_a_world_that_keeps_the_other_half_is_found_out(
    session: PrivateSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_half(caches: Sequence[Cache], start: int, count: int) -> tuple[int, int]:
        for cache in caches:
            for name in "kv":
                cache[name].copy_(cache[name].roll(count, dims=1))
        return claim(caches, start, count)

    monkeypatch.setattr(window, "claim", other_half)
    chosen = [
        one
        for one in flips(TINY, session.tree, SEED)
        if (one.part, one.cache) == ("overwritten", "kv_cache")
    ]
    found = battery(session, chosen, blocks=1)
    assert not any(one.as_expected for one in found)
    assert f"not so (overwritten): {chosen[0]}" in verdict(found)


def test_a_window_that_is_not_full_has_no_overwritten_half() -> None:
    with pytest.raises(InvalidInput, match="play more blocks first"):
        flips(TINY, warm_session(world_of("tiny"), SEED, 1).tree, SEED)


@given(word=st.integers(0, (1 << 16) - 1), bit=st.integers(0, 15))
def test_a_flip_changes_one_bit_and_twice_is_none(word: int, bit: int) -> None:
    words = torch.tensor([7, word - (1 << 16) if word >> 15 else word], dtype=torch.int16)
    leaf = words.view(torch.bfloat16).view(1, 2, 1, 1)
    flip = CacheFlip("read", "sign", "kv_cache", 0, "k", (0, 1, 0, 0), bit)
    flip.apply({"kv_cache": [{"k": leaf}]})
    assert [int(each) & 0xFFFF for each in words] == [7, word ^ 1 << bit]
    flip.apply({"kv_cache": [{"k": leaf}]})
    assert [int(each) & 0xFFFF for each in words] == [7, word]


def test_the_command_prints_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "chosen", lambda *given: flips(*given)[::5])
    document = tmp_path / "flips.json"
    options = ["--warm-blocks", "2", "--blocks", "1", "--json", str(document)]
    result = CliRunner().invoke(cli.app, options)
    assert result.exit_code == 0, result.output
    assert "4 of 4 flips came as the window's geometry says." in result.stdout
    content = json.loads(document.read_text())
    assert len(content["flips"]) == 6
    assert content["flips"][0]["flip"]["part"] == "overwritten"
    assert content["preset"] == "tiny"


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--preset", "mg2"], "is none of tiny, small"), (["--warm-blocks", "1"], "2")],
)
def test_wrong_usage_says_the_way_out(options: list[str], said: str) -> None:
    result = CliRunner().invoke(cli.app, options)
    assert result.exit_code == 2
    assert said in result.stderr
