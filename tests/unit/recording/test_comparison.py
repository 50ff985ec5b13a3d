"""Comparison of runs: the first block, leaf and granule, and what decided a block before that."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tests.unit.recording.runs import GRANULE_BYTES, LAYOUT, block, digests, header, run
from worldline.contract import Contract, DecodeTier, ServiceClass
from worldline.errors import InvalidInput
from worldline.recording.comparison import Difference, DifferenceKind, compare_runs
from worldline.recording.run import Run
from worldline.sdk.actions import Action
from worldline.sdk.records import World
from worldline.state.digest import digest_slot
from worldline.state.manifest import Fingerprint
from worldline.state.tree import TensorSpec, plan

LEAVES = {leaf.path: leaf for leaf in LAYOUT.tensors}


def changed(found: Run, index: int, **facts: Any) -> Run:
    """The run with one block that is otherwise."""
    blocks = list(found.blocks)
    blocks[index] = dataclasses.replace(blocks[index], **facts)
    return dataclasses.replace(found, blocks=tuple(blocks))


def difference(one: Run, other: Run) -> Difference:
    found = compare_runs(one, other)
    assert found is not None
    back = compare_runs(other, one)
    assert back is not None
    assert (found.kind, found.block_index) == (back.kind, back.block_index)
    return found


def test_equal_runs_are_equal_wherever_they_ran() -> None:
    elsewhere = dataclasses.replace(
        run(), header=header(session_id="another", fingerprint=Fingerprint.of({"threads": "2"}))
    )
    moved = changed(elsewhere, 2, epoch=5, fingerprint=Fingerprint.of({"threads": "3"}))
    assert compare_runs(run(), moved) is None
    assert compare_runs(run(0), run(0)) is None


@pytest.mark.parametrize("path", LEAVES)
@pytest.mark.parametrize("at", ["first", "last"])
def test_a_flipped_bit_is_found_in_its_leaf_and_granule(path: str, at: str) -> None:
    leaf = LEAVES[path]
    byte = leaf.offset_bytes if at == "first" else leaf.end_bytes - 1
    flipped = digests(3, flip=byte, block_index=3)
    other = changed(run(), 2, digests=flipped)
    found = difference(run(), other)
    assert (found.kind, found.block_index, found.leaf) == (DifferenceKind.STATE, 2, path)
    assert (found.granule, found.granule_bytes) == (byte // GRANULE_BYTES, GRANULE_BYTES)
    assert (found.leaves_differing, found.of_bytes) == (1, True)
    assert f"block 2: leaf {path} differs" in found.message


def test_the_first_of_several_differences_counts() -> None:
    one = changed(run(), 1, digests=digests(2, flip=0, block_index=2))
    both = changed(one, 3, digests=digests(99, block_index=4))
    assert difference(run(), both) == difference(run(), one)
    (last,) = run(4).blocks[3:]
    many = changed(run(), 3, digests=digests(99, block_index=4), scalars=last.scalars)
    assert difference(run(), many).leaves_differing == len(LEAVES)


@pytest.mark.parametrize(
    ("name", "value"),
    [("scale", -0.5), ("is_init", True), ("cache[1].end", 12), ("nothing", 0), ("name", "there")],
)
def test_a_scalar_that_differs_is_named(name: str, value: object) -> None:
    scalars = {**run().blocks[1].scalars, name: value}
    moved = {"block_index": 2, name: value}
    other = changed(run(), 1, scalars=scalars, digests=digests(2, **moved))
    found = difference(run(), other)
    assert (found.kind, found.block_index, found.leaf, found.granule) == (
        DifferenceKind.STATE,
        1,
        name,
        None,
    )
    assert f"scalar {name}" in found.message


def test_frames_that_differ_alone_are_said_so() -> None:
    found = difference(run(), changed(run(), 3, frames_digest=1))
    assert (found.kind, found.block_index, found.of_bytes) == (DifferenceKind.FRAMES, 3, True)


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"action": Action.keys("S")}, DifferenceKind.ACTION),
        ({"steps": 2}, DifferenceKind.STEPS),
    ],
)
def test_what_decided_a_block_comes_before_what_it_gave(
    facts: dict[str, Any], kind: DifferenceKind
) -> None:
    other = changed(run(), 1, **facts, digests=digests(50, block_index=2), frames_digest=9)
    found = difference(run(), other)
    assert (found.kind, found.block_index, found.of_bytes) == (kind, 1, False)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"world": World("small", 7)}, "preset"),
        ({"world": World("tiny", 8)}, "seed"),
        (
            {
                "contract": Contract(
                    ServiceClass.C1_INTERACTIVE, 5_000.0, decode_tier=DecodeTier.HALF
                )
            },
            "decoding",
        ),
    ],
)
def test_runs_that_began_otherwise_are_not_compared(facts: dict[str, Any], said: str) -> None:
    found = difference(run(), dataclasses.replace(run(), header=header(**facts)))
    assert (found.kind, found.block_index, found.of_bytes) == (DifferenceKind.START, None, False)
    assert said in found.message


def test_runs_that_begin_at_other_blocks_or_of_other_layouts_are_not_compared() -> None:
    assert "first block" in difference(run(), run(start=2)).message
    layout = plan({"cache": TensorSpec(torch.uint8, (300,)), "block_index": 0})
    data = memoryview(bytes(layout.extent_bytes))
    bare = Run(header(layout=layout, digests=digest_slot(layout, data, GRANULE_BYTES)), ())
    found = difference(run(0), bare)
    assert found.kind is DifferenceKind.START
    assert "laid out otherwise" in found.message


def test_a_start_of_other_bytes_is_a_difference_of_bytes() -> None:
    found = difference(run(), dataclasses.replace(run(), header=header(digests=digests(0, flip=5))))
    assert (found.kind, found.block_index, found.of_bytes) == (DifferenceKind.STATE, None, True)
    assert "at the start" in found.message


def test_a_run_that_ends_early_is_equal_as_far_as_it_goes() -> None:
    found = difference(run(4), run(2))
    assert (found.kind, found.block_index, found.of_bytes) == (DifferenceKind.LENGTH, 2, False)


def test_digests_of_other_granules_are_never_taken_as_equal() -> None:
    coarse = digest_slot(LAYOUT, memoryview(bytes(LAYOUT.extent_bytes)), 128)
    with pytest.raises(InvalidInput) as caught:
        compare_runs(run(0), Run(header(digests=coarse), ()))
    assert caught.value.field == "digests.granule_bytes"


def test_a_run_is_consecutive_and_of_one_state() -> None:
    with pytest.raises(InvalidInput, match="block 2 where block 1 comes next"):
        Run(header(), (block(0), block(2)))
    with pytest.raises(InvalidInput) as caught:
        changed(run(), 1, scalars={"block_index": 2})
    assert caught.value.field == "scalars"
