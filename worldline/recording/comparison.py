"""Comparison: the first place where two runs part ways. Pure; no bytes are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest

from worldline.recording.run import Run, RunBlock, RunHeader
from worldline.state.difference import compare
from worldline.state.layout import Layout
from worldline.state.manifest import Digests
from worldline.state.scalar import encode


class DifferenceKind(StrEnum):
    """In what two runs differ first."""

    #: Another world, another contract's decoding, or another first block: not the same run.
    START = "start"
    #: The player did something else, so whatever follows may differ.
    ACTION = "action"
    #: A block was generated from another number of denoising steps.
    STEPS = "steps"
    STATE = "state"
    FRAMES = "frames"
    #: Equal as far as the shorter one goes.
    LENGTH = "length"


#: Kinds where the same inputs gave other bytes.
OF_BYTES = frozenset({DifferenceKind.STATE, DifferenceKind.FRAMES})


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference. `leaf` and `granule` where the state differs there; None else."""

    kind: DifferenceKind
    message: str
    block_index: int | None = None
    leaf: str | None = None
    granule: int | None = None
    granule_bytes: int | None = None
    #: Leaves of that block that differ.
    leaves_differing: int = 0

    @property
    def of_bytes(self) -> bool:
        """Whether equal inputs gave other bytes."""
        return self.kind in OF_BYTES


def compare_runs(one: Run, other: Run) -> Difference | None:
    """None where both are equal from start to end; else the first difference.

    Epochs, engines and sessions are not compared: a run that moved equals one that did not.

    Raises:
        InvalidInput: the digests of one are of another granule size or algorithm.
    """
    found = compare_starts(one.header, other.header)
    if found is not None:
        return found
    for first, second in zip_longest(one.blocks, other.blocks):
        if first is None or second is None:
            return _other_length(one, other)
        found = compare_blocks(one.header.layout, first, second)
        if found is not None:
            return found
    return None


def compare_starts(one: RunHeader, other: RunHeader) -> Difference | None:
    """Whether the same run began: world, decoding, first block, layout, and the state's bytes.

    Raises:
        InvalidInput: as `compare_runs`.
    """
    for name, here, there in _starts(one, other):
        if here != there:
            message = f"the runs began otherwise: {name} is {here} here, {there} there"
            return Difference(DifferenceKind.START, message)
    if one.layout.topology_hash != other.layout.topology_hash:
        return Difference(DifferenceKind.START, _other_layout(one.layout, other.layout))
    return compare_states(one.layout, other.layout, one.digests, other.digests, None)


def compare_blocks(layout: Layout, one: RunBlock, other: RunBlock) -> Difference | None:
    """Whether two blocks of one index are equal: what decided them first, then what they gave.

    Raises:
        InvalidInput: as `compare_runs`.
    """
    index = one.block_index
    if one.action != other.action:
        message = f"block {index} was asked for with another action"
        return Difference(DifferenceKind.ACTION, message, index)
    if one.steps != other.steps:
        message = f"block {index} has {one.steps} denoising steps here, {other.steps} there"
        return Difference(DifferenceKind.STEPS, message, index)
    found = compare_states(
        layout.with_scalars(dict(one.scalars)),
        layout.with_scalars(dict(other.scalars)),
        one.digests,
        other.digests,
        index,
    )
    if found is None and one.frames_digest != other.frames_digest:
        message = f"the frames of block {index} differ, its state does not"
        return Difference(DifferenceKind.FRAMES, message, index)
    return found


def compare_states(
    here: Layout, there: Layout, one: Digests, other: Digests, block_index: int | None
) -> Difference | None:
    """Two states of one topology, behind that block; None for the start.

    Raises:
        InvalidInput: as `compare_runs`.
    """
    found = compare(here, one, other)
    if found is None:
        return None
    when = "at the start" if block_index is None else f"behind block {block_index}"
    leaf, message = found.leaf, found.message
    if found.granule is None:
        scalar = next(_differing_scalars(here, there), None)
        if scalar is not None:
            leaf, message = scalar, f"scalar {scalar} differs, and no byte of a tensor"
    pairs = zip(one.leaves, other.leaves, strict=True)
    return Difference(
        DifferenceKind.STATE,
        f"{when}: {message}",
        block_index,
        leaf,
        found.granule,
        one.granule_bytes,
        sum(first != second for first, second in pairs),
    )


def _starts(one: RunHeader, other: RunHeader) -> Iterator[tuple[str, object, object]]:
    yield "the preset", one.world.preset, other.world.preset
    yield "the seed", one.world.seed, other.world.seed
    yield "the decoding", one.contract.decode_tier.name, other.contract.decode_tier.name
    yield "the first block", one.block_index, other.block_index


def _other_layout(one: Layout, other: Layout) -> str:
    for here, there in zip_longest(one.tensors, other.tensors):
        if here != there:
            path = there.path if here is None else here.path
            return f"the states are laid out otherwise, first at leaf {path}"
    return "the states are laid out otherwise: other scalars or containers"


def _differing_scalars(one: Layout, other: Layout) -> Iterator[str]:
    there = other.scalar_values()
    for path, value in one.scalar_values().items():
        if encode(value) != encode(there[path]):
            yield path


def _other_length(one: Run, other: Run) -> Difference:
    counts = len(one.blocks), len(other.blocks)
    shorter, longer = min(counts), max(counts)
    ends, goes_on = ("first", "second") if counts[0] == shorter else ("second", "first")
    return Difference(
        DifferenceKind.LENGTH,
        f"equal for {shorter} blocks, where the {ends} run ends; the {goes_on} has {longer}",
        one.header.block_index + shorter,
    )
