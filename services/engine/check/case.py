"""Case: one model under check, and the run that its checks compare with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from services.engine.check.elsewhere import Elsewhere
from services.engine.check.private import PrivateWorld, Seen, Snapshot
from services.engine.check.subject import Subject


@dataclass(frozen=True)
class Wish:
    """How thoroughly to look."""

    #: Before the state is captured, and as many after.
    blocks: int = 3
    seed: int = 7
    weights_seed: int = 0
    #: Most leaves that are perturbed.
    leaves: int = 64


@dataclass(frozen=True)
class Reference:
    """A session that played on undisturbed, and its state in the middle."""

    before: tuple[Seen, ...]
    snapshot: Snapshot
    after: tuple[Seen, ...]
    #: Where its slot was.
    address: int


class Case:
    """What checks work on."""

    def __init__(
        self,
        subject: Subject,
        wish: Wish,
        elsewhere: Elsewhere,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.subject = subject
        self.wish = wish
        self.elsewhere = elsewhere
        #: Hears how far a check is, in words, where it goes over many things.
        self.progress = progress

    @cached_property
    def reference(self) -> Reference:
        """The undisturbed run, made once. Raises whatever the model raises."""
        with PrivateWorld.opened(self.subject, self.wish.seed) as world:
            before = world.play(self.wish.blocks)
            snapshot = world.snapshot()
            return Reference(before, snapshot, world.play(self.wish.blocks), world.address)
