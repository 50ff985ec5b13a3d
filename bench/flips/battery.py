"""Battery: each flip in a copy of one warm session, played beside a twin that nobody touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.flips.strata import CacheFlip
from bench.private import Picture, PrivateSession

#: The window is rewritten as a whole in two blocks; the third is played on what those left.
BLOCKS = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one flip; blocks count from the flip, the next one is the first."""

    flip: CacheFlip
    #: Samples (one colour of one pixel) of each block's frames that differ from the twin's.
    samples_changed: tuple[int, ...]
    #: Whether the whole state, every byte and scalar, is the twin's after each block.
    state_equal: tuple[bool, ...]

    @property
    def visible_at(self) -> int | None:
        """The first block that shows anything, from 1; None: none of those played does."""
        return next((n for n, changed in enumerate(self.samples_changed, 1) if changed), None)

    @property
    def erased_after(self) -> int | None:
        """Blocks until the state is the twin's bit for bit and stays so; None: it never is."""
        equal = len(self.state_equal)
        while equal and self.state_equal[equal - 1]:
            equal -= 1
        return None if equal == len(self.state_equal) else equal + 1

    @property
    def as_expected(self) -> bool | None:
        """Whether the window's geometry was right about it; None where it says nothing.

        What the next block overwrites before it reads is never seen and gone after it; a sign or an
        exponent that it reads is seen in it; what nothing reads is never seen.
        """
        if self.flip.part == "overwritten":
            return self.visible_at is None and self.erased_after == 1
        if self.flip.part == "unwired":
            return self.visible_at is None
        if self.flip.part == "read" and self.flip.meaning != "mantissa":
            return self.visible_at == 1
        return None


def battery(
    session: PrivateSession,
    flips: Sequence[CacheFlip],
    blocks: int = BLOCKS,
    say: Callable[[int], None] = lambda done: None,
) -> list[Outcome]:
    """Every flip's outcome; `session` itself is left as it is. `say` hears how many are done."""
    twin = session.copy()
    expected = [(twin.play(), twin.digest()) for _ in range(blocks)]
    outcomes = []
    for flip in flips:
        outcomes.append(_outcome(session, flip, expected))
        say(len(outcomes))
    return outcomes


def _outcome(
    session: PrivateSession, flip: CacheFlip, expected: Sequence[tuple[Picture, int]]
) -> Outcome:
    flipped = session.copy()
    flip.apply(flipped.tree)
    changed, equal = [], []
    for picture, digest in expected:
        changed.append(int((flipped.play() != picture).sum()))
        equal.append(flipped.digest() == digest)
    return Outcome(flip, tuple(changed), tuple(equal))
