"""The dirty trace: counted bytes against the bytes, positions, what was never written."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.state.traces import BLOCK_MS, Window, record, run
from worldline.errors import InvalidInput
from worldline.state.boundary import Baseline, Boundary, pack_flags, unpack_flags
from worldline.state.dirty import DirtyTrace
from worldline.state.granulation import (
    COUNT_MAX,
    DEFAULT_COUNT,
    check_granule_bytes,
    default_granule_bytes,
)
from worldline.state.inspection import inspection_of
from worldline.state.layout import Layout
from worldline.state.leaf_group import each_leaf, groups_by_pattern, pattern_of
from worldline.state.positions import POSITIONS_MAX, positions_of
from worldline.state.segments import segments_of
from worldline.state.tracer import Tracer
from worldline.state.tree import TensorSpec, layout_of, plan

GRANULES = st.sampled_from([128, 256, 1024, 4096, 1 << 20])


@st.composite
def histories(draw: st.DrawFn) -> tuple[Layout, int, list[np.ndarray]]:
    """A layout of some leaves, a granule, and the extent's bytes at successive boundaries."""
    shapes = draw(
        st.lists(
            st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 90)),
            min_size=1,
            max_size=5,
        )
    )
    layout = plan([TensorSpec(torch.uint8, shape) for shape in shapes])
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    extent = np.zeros(layout.extent_bytes, np.uint8)
    states = [extent.copy()]
    for _ in range(draw(st.integers(1, 5))):
        for leaf in layout.tensors:
            start, end = sorted(random.integers(0, leaf.size_bytes + 1, 2) + leaf.offset_bytes)
            if random.random() < 0.6:
                extent[start:end] = random.integers(1, 256, end - start, dtype=np.uint8)
        states.append(extent.copy())
    return layout, draw(st.sampled_from([128, 256, 1 << 20])), states


def traced(layout: Layout, granule: int, states: list[np.ndarray]) -> DirtyTrace:
    buffer = torch.from_numpy(states[0].copy())

    def show(index: int) -> None:
        buffer.copy_(torch.from_numpy(states[index + 1].copy()))

    return run(layout, buffer, show, len(states) - 1, granule)


@given(histories())
@settings(max_examples=40)
def test_counted_bytes_are_those_of_the_segments_that_hold_a_changed_byte(
    history: tuple[Layout, int, list[np.ndarray]],
) -> None:
    layout, granule, states = history
    trace = traced(layout, granule, states)
    bounds = segments_of(layout, granule).bounds
    covered = np.zeros(layout.extent_bytes, np.bool_)
    for leaf in layout.tensors:
        covered[leaf.offset_bytes : leaf.end_bytes] = True
    for step, before, after in zip(trace.writes(), states, states[1:], strict=False):
        changed = [
            int(end - start)
            for start, end in pairwise(bounds)
            if covered[start] and (before[start:end] != after[start:end]).any()
        ]
        assert step.changed_bytes == sum(changed)
        assert step.changed_bytes >= int((before != after).sum())
        assert step.size_bytes == int(covered.sum())
        assert step.elapsed_ms == BLOCK_MS


@given(histories())
@settings(max_examples=40)
def test_leaves_add_up_to_the_state(history: tuple[Layout, int, list[np.ndarray]]) -> None:
    layout, granule, states = history
    trace = traced(layout, granule, states)
    by_leaf = [trace.writes([index]) for index in range(len(layout.tensors))]
    for at, whole in enumerate(trace.writes()):
        parts = [steps[at] for steps in by_leaf]
        for name in (
            "size_bytes",
            "used_bytes",
            "written_before_bytes",
            "appended_bytes",
            "new_bytes",
            "rewritten_bytes",
            "changed_bytes",
            "room_bytes",
        ):
            assert getattr(whole, name) == sum(getattr(part, name) for part in parts), name


@given(histories())
@settings(max_examples=40)
def test_never_written_is_exactly_what_kept_its_first_bytes(
    history: tuple[Layout, int, list[np.ndarray]],
) -> None:
    layout, granule, states = history
    trace = traced(layout, granule, states)
    kept = tuple(
        index
        for index, leaf in enumerate(layout.tensors)
        if all((state[leaf.offset_bytes : leaf.end_bytes] == 0).all() for state in states)
    )
    assert trace.never_written() == kept
    assert trace.constant() == kept  # the first state is the baseline here


def test_what_was_written_before_the_trace_is_constant_and_not_never_written() -> None:
    layout = plan(
        {"early": TensorSpec(torch.uint8, (64,)), "never": TensorSpec(torch.uint8, (64,))}
    )
    fresh = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    buffer = fresh.clone()
    buffer[:64] = 7
    trace = record(layout, buffer, 128, range(3), first_block=5, baseline=fresh)
    assert trace.never_written() == (1,)
    assert trace.constant() == (0, 1)
    assert trace.last_block == 7
    inspection = inspection_of(trace)
    assert inspection.never_written_bytes == 64
    assert [group.never_written_count for group in inspection.groups] == [0, 1]


def test_padding_counts_nowhere() -> None:
    layout = plan([TensorSpec(torch.uint8, (200,)), TensorSpec(torch.uint8, (200,))])
    assert layout.extent_bytes > 400, "the leaves of this test have padding between them"
    buffer = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    trace = run(layout, buffer, lambda index: buffer[200:256].fill_(index + 1), 2, 128)
    assert [step.changed_bytes for step in trace.writes()] == [0, 0]
    assert inspection_of(trace).state_bytes == 400


def test_leaves_that_share_memory_count_once() -> None:
    buffer = torch.zeros(4096, dtype=torch.uint8)
    layout = layout_of({"all": buffer[:1024], "half": buffer[512:1024]}, buffer)
    trace = run(layout, buffer, lambda index: buffer[768:1024].fill_(index + 1), 2, 256)
    (first, _) = trace.writes()
    assert (first.size_bytes, first.changed_bytes) == (1024, 256)
    assert [trace.writes([leaf])[0].changed_bytes for leaf in (0, 1)] == [256, 256]


def test_an_append_inside_a_granule_is_no_rewrite() -> None:
    """Sixteen bytes at a time into granules of 256: most granules change again."""
    layout = plan([TensorSpec(torch.uint8, (2048,))])
    buffer = torch.zeros(layout.extent_bytes, dtype=torch.uint8)

    def append(index: int) -> None:
        buffer[16 * index : 16 * index + 16] = index + 1

    for step in run(layout, buffer, append, 40, 256).writes():
        assert step.rewritten_bytes == 0
        assert step.appended_bytes == 256


def test_a_rewrite_in_the_middle_of_what_was_written_is_one() -> None:
    layout = plan([TensorSpec(torch.uint8, (2048,))])
    buffer = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    fresh = buffer.clone()
    buffer[:1024] = 1
    (step,) = record(
        layout, buffer, 256, (buffer[300:301].fill_(9) for _ in range(1)), baseline=fresh
    ).writes()
    assert (step.written_before_bytes, step.rewritten_bytes, step.appended_bytes) == (1024, 256, 0)


@given(
    st.integers(1, 3),
    st.integers(2, 60),
    st.integers(1, 5),
    st.lists(st.integers(0, 10**6), min_size=2, max_size=2),
)
def test_every_byte_of_a_leaf_has_one_position(
    rows: int, length: int, item: int, cuts: list[int]
) -> None:
    (leaf,) = plan([TensorSpec(torch.int16, (rows, length, item))]).tensors
    positions = positions_of(leaf)
    assert positions is not None
    assert positions.count == min(length, POSITIONS_MAX)
    start, end = sorted(cut % (leaf.size_bytes + 1) for cut in cuts)
    (found,) = positions.overlaps(np.array([start]), np.array([end]))
    expected = np.zeros(positions.count, np.int64)
    row_bytes = length * item * 2
    edges = [index * length // positions.count * item * 2 for index in range(positions.count + 1)]
    for offset in range(start, end):
        expected[int(np.searchsorted(edges, offset % row_bytes, side="right")) - 1] += 1
    assert found.tolist() == expected.tolist()
    assert positions.sizes_bytes.sum() == leaf.size_bytes


@pytest.mark.parametrize("rows", [1, 5])
def test_heat_lies_where_the_window_is_written(rows: int) -> None:
    window = Window(frames=6, step=3, sink=1, rows=rows, frame_bytes=512)
    trace = window.trace(blocks=2, granule_bytes=256, before=2)
    heat = trace.position_heat([0])
    assert heat is not None
    assert heat.tolist() == [0, 1, 1, 1, 1, 1]
    assert trace.position_heat([1]).tolist() == [0] * 6
    slot = trace.heat(12 * rows)
    assert slot.sum() == pytest.approx(5 * rows)
    assert slot[6 * rows :].tolist() == [0] * (6 * rows)


def test_granules_that_mix_positions_tell_none() -> None:
    window = Window(frames=6, step=3, sink=0, rows=4, frame_bytes=512)
    trace = window.trace(blocks=2, granule_bytes=1024, before=2)
    assert trace.position_heat([0]) is None
    assert trace.position_piece_bytes([0]) == 512
    assert trace.position_piece_bytes([]) is None


def test_a_leaf_without_a_window_has_no_positions() -> None:
    flat, short, empty = plan(
        [
            TensorSpec(torch.uint8, (8,)),
            TensorSpec(torch.uint8, (8, 1)),
            TensorSpec(torch.uint8, (0, 4)),
        ]
    ).tensors
    buffer = torch.zeros(64, dtype=torch.uint8)
    (turned,) = layout_of([buffer.view(8, 8).T], buffer).tensors
    assert [positions_of(leaf) for leaf in (flat, short, empty, turned)] == [None] * 4


def test_paths_are_grouped_by_their_indices() -> None:
    assert pattern_of("kv_cache[12].k") == "kv_cache[*].k"
    assert pattern_of("slots{7}[0]") == "slots{*}[*]"
    assert pattern_of('table["a[3]"].k') == 'table["a[3]"].k'
    layout = plan(
        {
            "kv": [{"k": TensorSpec(torch.uint8, (4,))} for _ in range(3)],
            "none": TensorSpec(torch.uint8, (0,)),
        }
    )
    (group,) = groups_by_pattern(layout)
    assert (group.pattern, group.leaves) == ("kv[*].k", (0, 1, 2))
    assert [each.pattern for each in each_leaf(layout)] == ["kv[0].k", "kv[1].k", "kv[2].k"]


@given(st.lists(st.booleans(), max_size=100))
def test_flags_survive_the_wire(flags: list[bool]) -> None:
    packed = pack_flags(np.array(flags, np.bool_))
    assert unpack_flags(packed, len(flags), "changed").tolist() == flags


def test_flags_of_another_length_are_refused() -> None:
    with pytest.raises(InvalidInput) as refused:
        unpack_flags(b"\x01", 9, "boundary.changed")
    assert refused.value.field == "boundary.changed"


@given(st.integers(1, 1 << 34))
def test_the_default_granule_is_the_finest_that_the_state_affords(size_bytes: int) -> None:
    layout = plan([TensorSpec(torch.uint8, (size_bytes,))])
    granule = check_granule_bytes(0, layout)
    assert granule == default_granule_bytes(layout)
    assert granule & (granule - 1) == 0
    assert granule in (128, 1 << 20) or size_bytes > DEFAULT_COUNT * granule // 2
    assert granule == 1 << 20 or size_bytes <= DEFAULT_COUNT * granule


@pytest.mark.parametrize("granule", [1, 64, 192, 2 << 20, -128])
def test_a_granule_that_is_none_is_refused(granule: int) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_granule_bytes(granule, plan([TensorSpec(torch.uint8, (8,))]))
    assert refused.value.field == "granule_bytes"


def test_too_many_granules_are_refused_with_the_finest_there_can_be() -> None:
    layout = plan([TensorSpec(torch.uint8, (COUNT_MAX * 1000,))])
    with pytest.raises(InvalidInput, match="1024"):
        check_granule_bytes(512, layout)
    assert check_granule_bytes(1024, layout) == 1024


def test_boundaries_must_follow_each_other_and_fit_the_layout() -> None:
    layout = plan([TensorSpec(torch.uint8, (200,))])

    def at(index: int, count: int = 2) -> Boundary:
        nothing = np.zeros(count, np.bool_)
        return Boundary(index, 0.0, 0.0, nothing, nothing)

    for boundaries in ((), (at(1), at(1)), (at(2), at(1)), (at(1, 3),)):
        with pytest.raises(InvalidInput) as refused:
            DirtyTrace(layout, 128, Baseline.ZEROS, boundaries)
        assert refused.value.field == "boundaries"


def test_a_tracer_takes_digests_of_one_layout() -> None:
    with pytest.raises(InvalidInput) as refused:
        Tracer(np.zeros(2, np.uint64)).boundary(0, 0.0, 0.0, np.zeros(3, np.uint64))
    assert refused.value.field == "segment_crcs"


def test_a_missed_boundary_is_a_longer_step() -> None:
    window = Window(frames=6, step=3, sink=0, rows=1, frame_bytes=256)
    crcs = [np.array([value] * 12, np.uint64) for value in (0, 1, 2)]
    tracer = Tracer(crcs[0])
    boundaries = (tracer.boundary(3, 0.0, 0.0, crcs[1]), tracer.boundary(5, 900.0, 0.0, crcs[2]))
    (step,) = DirtyTrace(window.layout, 256, Baseline.ZEROS, boundaries).writes()
    assert (step.block_index, step.block_count, step.elapsed_ms) == (3, 2, 900.0)
