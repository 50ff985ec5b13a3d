"""The update rule: traces that follow one by construction, and what the paper's engines showed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.state.traces import Window, record, run
from worldline.state.inspection import inspection_of
from worldline.state.tree import TensorSpec, plan
from worldline.state.update_rule import (
    FILLING_BLOCKS_MAX,
    Regime,
    UpdateRule,
    classify,
    regime_of,
)
from worldline.state.writes import Writes

GRANULES = st.sampled_from([128, 512, 2048])


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """A window that rolls, with or without a sink that stays; at most half of it is sink."""
    step = draw(st.integers(1, 4))
    frames = step * draw(st.integers(2, 6))
    return Window(
        frames=frames,
        step=step,
        sink=draw(st.integers(0, frames // 4)),
        rows=draw(st.integers(1, 3)),
        frame_bytes=2048 * draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


@given(windows(), GRANULES, st.integers(1, 4))
@settings(max_examples=25)
def test_a_window_that_rolls_is_rewritten(window: Window, granule: int, blocks: int) -> None:
    before = window.frames // window.step
    inspection = inspection_of(window.trace(blocks, granule, before))
    assert inspection.classification.rule is UpdateRule.WINDOW_REWRITE
    rolled = 1 - window.sink / window.frames
    assert inspection.rewritten_fraction == pytest.approx(rolled)
    assert inspection.dirty_fraction == pytest.approx(rolled / 2)  # beside as much unwired


@given(windows(), GRANULES)
@settings(max_examples=25)
def test_a_window_is_filling_until_it_is_full(window: Window, granule: int) -> None:
    fill = window.frames // window.step
    inspection = inspection_of(window.trace(fill, granule))
    assert inspection.classification.rule is UpdateRule.FILLING
    assert inspection.rewritten_fraction == 0
    assert inspection.dirty_fraction == pytest.approx(window.step / window.frames / 2)


@given(windows(), GRANULES, st.integers(1, 3))
@settings(max_examples=25)
def test_a_trace_with_both_regimes_says_where_it_turned(
    window: Window, granule: int, rolls: int
) -> None:
    fill = window.frames // window.step
    found = inspection_of(window.trace(fill + rolls, granule)).classification
    assert found.rule is UpdateRule.WINDOW_REWRITE
    assert found.first_step == fill
    assert "filled it" in found.evidence


@given(
    heads=st.integers(1, 3),
    token_bytes=st.sampled_from([16, 48, 128, 256]),
    prompt=st.integers(0, 40),
    blocks=st.integers(2, 8),
    granule=GRANULES,
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=40)
def test_an_append_only_cache_rewrites_nothing_at_any_granule(
    heads: int, token_bytes: int, prompt: int, blocks: int, granule: int, seed: int
) -> None:
    """Keys of one token a block and head, as a language model's static cache has them."""
    tokens = prompt + blocks + 2 * int(FILLING_BLOCKS_MAX) + 40 * 2048 // token_bytes
    layout = plan({"k": TensorSpec(torch.uint8, (1, heads, tokens, token_bytes))})
    buffer = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    keys = buffer[: heads * tokens * token_bytes].view(heads, tokens, token_bytes)
    random = np.random.default_rng(seed)

    def append(first: int, count: int = 1) -> None:
        drawn = random.integers(1, 256, (heads, count, token_bytes), dtype=np.uint8)
        keys[:, first : first + count] = torch.from_numpy(drawn)

    fresh = buffer.clone()
    append(0, prompt)
    steps = (append(prompt + index) for index in range(blocks))
    inspection = inspection_of(record(layout, buffer, granule, steps, baseline=fresh))
    assert f"{inspection.rewritten_fraction:.3f}" == "0.000"
    assert inspection.classification.rule is UpdateRule.APPEND_ONLY


@given(
    frames=st.integers(8, 30),
    written=st.integers(4, 8),
    every=st.integers(2, 4),
    granule=GRANULES,
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=25)
def test_a_bank_is_written_now_and_then_and_selected_from_always(
    frames: int, written: int, every: int, granule: int, seed: int
) -> None:
    """A frame joins the bank every so many blocks; what was selected is rewritten at each."""
    frame_bytes = 16 << 10
    layout = plan(
        {
            "bank": TensorSpec(torch.uint8, (frames, frame_bytes)),
            "selected": TensorSpec(torch.int64, (16,)),
        }
    )
    buffer = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    fresh = buffer.clone()
    bank, selected = (
        buffer[leaf.offset_bytes : leaf.end_bytes].view(leaf.shape[0], -1)
        for leaf in layout.tensors
    )
    random = np.random.default_rng(seed)

    def keep(frame: int) -> None:
        drawn = random.integers(1, 256, frame_bytes, dtype=np.uint8)
        bank[frame % frames] = torch.from_numpy(drawn)

    def block(index: int) -> None:
        selected.copy_(torch.from_numpy(random.integers(0, 256, tuple(selected.shape), np.uint8)))
        if index % every == 0 and written + index // every < frames:
            keep(written + index // every)

    for frame in range(written):
        keep(frame)
    steps = (block(index) for index in range(2 * every))
    inspection = inspection_of(record(layout, buffer, granule, steps, baseline=fresh))
    assert inspection.classification.rule is UpdateRule.FRAME_BANK
    assert inspection.rewritten_fraction < 0.01


@given(share=st.floats(0.12, 0.4), granule=GRANULES)
@settings(max_examples=20)
def test_a_state_of_which_a_part_is_rewritten_is_of_no_known_rule(
    share: float, granule: int
) -> None:
    layout = plan([TensorSpec(torch.uint8, (1 << 16,))])
    buffer = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    fresh = buffer.clone()
    buffer[:] = 1
    part = buffer[: int(share * buffer.numel())]
    steps = (part.fill_(index + 2) for index in range(4))
    found = inspection_of(record(layout, buffer, granule, steps, baseline=fresh)).classification
    assert found.rule is UpdateRule.UNKNOWN
    assert "too little for a rewrite" in found.evidence


def test_nothing_written_nothing_observed_and_one_block() -> None:
    layout = plan([TensorSpec(torch.uint8, (4096,))])
    buffer = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    never = inspection_of(run(layout, buffer, lambda index: None, 3, 128)).classification
    assert never.rule is UpdateRule.NEVER_WRITTEN
    assert classify(()).rule is UpdateRule.UNKNOWN
    window = Window(frames=6, step=3, sink=0, rows=1, frame_bytes=2048)
    one = inspection_of(window.trace(1, 128)).classification
    assert one.rule is UpdateRule.UNKNOWN
    assert "observe at least 2" in one.evidence


def test_what_was_written_and_never_changes_is_constant() -> None:
    layout = plan([TensorSpec(torch.uint8, (4096,))])
    buffer = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    fresh = buffer.clone()
    buffer[:1024] = 1
    found = inspection_of(record(layout, buffer, 128, range(3), baseline=fresh)).classification
    assert found.rule is UpdateRule.CONSTANT
    assert "nothing of 1024 bytes" in found.evidence


def test_a_log_that_is_nearly_full_is_told_from_a_window_by_its_room() -> None:
    def appended(room: int) -> Writes:
        used = 1000 + 100 + room
        return Writes(0, 1, 1.0, used, used, 1000, 100, 100, 0)

    for room, rule in ((3100, UpdateRule.FILLING), (3200, UpdateRule.APPEND_ONLY)):
        assert classify([appended(room + 100), appended(room)]).rule is rule


def test_regimes_do_not_hang_on_a_generator_beside_an_empty_cache() -> None:
    """Before the first block a generator's state may be all that was ever written."""
    first = Writes(
        0,
        1,
        1.0,
        10_000,
        10_000,
        written_before_bytes=50,
        appended_bytes=3_000,
        new_bytes=3_000,
        rewritten_bytes=50,
    )
    assert regime_of(first) is Regime.APPENDS


def test_a_rewrite_that_stops_is_no_bank() -> None:
    """What was rewritten a block ago may be again: nothing is promised."""
    rewrote = Writes(0, 1, 1.0, 1000, 1000, 1000, 0, 0, 900)
    quiet = Writes(1, 1, 1.0, 1000, 1000, 1000, 0, 0, 0)
    found = classify([rewrote, quiet, quiet])
    assert found.rule is UpdateRule.UNKNOWN
    assert "blocks before them rewrote" in found.evidence


def test_the_geometry_of_longlive_gives_the_papers_two_figures() -> None:
    """LongLive-1.3B: 3.545 GB are 12 frames of 1,560 tokens, and 512 of conditioning, per layer.

    The paper measures 0.249 while filling and 0.727 when full (section 3.3). Three frames a block
    and a sink of three frames give 0.243 and 0.730 of those shapes, an eighth of their tokens here.
    """
    channels = 16
    window = Window(frames=12, step=3, sink=3, rows=1, frame_bytes=195 * channels)
    layout = plan(
        {
            "kv": TensorSpec(torch.uint8, (1, 12, 195 * channels)),
            "conditioning": TensorSpec(torch.uint8, (1, 64, channels)),
        }
    )
    buffer = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    fresh = buffer.clone()
    kv, conditioning = layout.tensors
    buffer[conditioning.offset_bytes : conditioning.end_bytes] = 9
    window.kv = buffer[kv.offset_bytes : kv.end_bytes].view(1, 12, -1)
    steps = (window.block() for _ in range(7))
    trace = record(layout, buffer, 16 * channels, steps, baseline=fresh)
    dirty = [step.dirty_fraction for step in trace.writes()]
    assert dirty[:4] == pytest.approx([0.249] * 4, abs=0.02)
    assert dirty[4:] == pytest.approx([0.727] * 3, abs=0.02)
    assert inspection_of(trace).classification.rule is UpdateRule.WINDOW_REWRITE
