"""Run: what is known of a recorded session: how it began, and each block with what decided it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from worldline.contract import Contract
from worldline.errors import InvalidInput
from worldline.fields import identifier, whole
from worldline.sdk.actions import Action
from worldline.sdk.records import World
from worldline.state.difference import check_digests
from worldline.state.layout import Layout
from worldline.state.manifest import Digests, Fingerprint
from worldline.state.scalar import ScalarValue

UINT64_MAX = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class RunHeader:
    """How a run began: its world, its contract, its engine's configuration, its first state.

    `block_index` is that of the first block to come. At 0 the start is the seed alone: a fresh
    world of that preset and seed has these digests. Later the start is a snapshot: whoever replays
    brings a session that stands there, and these digests say whether it does.

    Raises:
        InvalidInput: a name or number out of range, or digests that are not the layout's.
    """

    session_id: str
    epoch: int
    world: World
    contract: Contract
    fingerprint: Fingerprint
    block_index: int
    #: With the scalars at the start.
    layout: Layout
    digests: Digests

    def __post_init__(self) -> None:
        identifier(self.session_id, "session_id")
        whole(self.epoch, "epoch", at_least=1)
        identifier(self.world.preset, "world.preset")
        whole(self.world.seed, "world.seed", at_most=UINT64_MAX)
        whole(self.block_index, "block_index")
        check_digests(self.layout, self.digests, "digests")


@dataclass(frozen=True, slots=True)
class RunBlock:
    """One block of a run: what decided it, and what it gave.

    `steps` are the denoising steps that it was generated from, of `steps_full`: a replay asks for
    as many. `digests` and `scalars` are of the state behind it. `fingerprint` is that of its engine
    where it is not the header's (after a move at T1), else None.

    Raises:
        InvalidInput: a number out of range.
    """

    block_index: int
    epoch: int
    action: Action
    steps: int
    steps_full: int
    frames_digest: int
    digests: Digests
    scalars: Mapping[str, ScalarValue] = field(hash=False)
    fingerprint: Fingerprint | None = None

    def __post_init__(self) -> None:
        whole(self.block_index, "block_index")
        whole(self.epoch, "epoch", at_least=1)
        whole(self.steps_full, "steps_full", at_least=1)
        whole(self.steps, "steps", at_least=1, at_most=self.steps_full)
        whole(self.frames_digest, "frames_digest", at_most=UINT64_MAX)


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it was read or made. Its blocks are consecutive from the header's.

    `torn_bytes` is what was left out of its log: the beginning of a line that was never finished.

    Raises:
        InvalidInput: a block is missing, or its digests and scalars are not the layout's.
    """

    header: RunHeader
    blocks: tuple[RunBlock, ...]
    torn_bytes: int = 0

    def __post_init__(self) -> None:
        for place, block in enumerate(self.blocks):
            check_next(self.header, place, block)


def check_next(header: RunHeader, place: int, block: RunBlock) -> None:
    """Whether that block can be the run's number `place`.

    Raises:
        InvalidInput: it cannot; `field` says why.
    """
    expected = header.block_index + place
    if block.block_index != expected:
        raise InvalidInput(
            f"block {block.block_index} where block {expected} comes next", field="block_index"
        )
    check_digests(header.layout, block.digests, "digests")
    if block.digests.granule_bytes != header.digests.granule_bytes:
        raise InvalidInput(
            f"granules of {block.digests.granule_bytes} bytes in a run with granules of "
            f"{header.digests.granule_bytes}",
            field="digests.granule_bytes",
        )
    if block.scalars.keys() != header.layout.scalar_values().keys():
        raise InvalidInput("not the scalars of the run's state", field="scalars")
