"""Playback: which blocks were delivered and which actions wait for theirs. Pure.

The promise to the player is kept here: consecutive block indices, none lost, none twice, whatever
happens to streams and engines underneath.
"""

from __future__ import annotations

from collections import deque

from worldline.errors import Fenced, IntegrityError
from worldline.sdk.actions import Action

#: An action and the block it belongs to.
Numbered = tuple[int, Action]


class Playback:
    """The player's side of one session; outlives streams and single calls of `play`."""

    def __init__(self, next_block_index: int, epoch: int = 0) -> None:
        #: The next block that the player gets.
        self.next_block_index = next_block_index
        #: Newest epoch seen; an owner of an older one is not believed.
        self.epoch = epoch
        self._next_action_index = next_block_index
        self._unanswered: deque[Numbered] = deque()

    @property
    def outstanding(self) -> int:
        """Blocks that are on their way: their actions were taken, they were not delivered."""
        return self._next_action_index - self.next_block_index

    def take(self, action: Action) -> Numbered:
        """Number the player's next action; keep it until its block was delivered."""
        numbered = (self._next_action_index, action)
        self._next_action_index += 1
        self._unanswered.append(numbered)
        return numbered

    def joined(self, epoch: int, expected_index: int) -> list[Numbered]:
        """An engine answered a join: it expects the action of block `expected_index` next.

        Returns the actions to send, in order. Those before `expected_index` were used already:
        their blocks come out of the engine's outbox.

        Raises:
            Fenced: the engine speaks for an older epoch than one already seen.
            IntegrityError: the engine's world is behind blocks that were already delivered.
        """
        if epoch < self.epoch:
            raise Fenced(
                f"the engine joined in epoch {epoch}, but epoch {self.epoch} was already seen",
                reason="STALE_EPOCH",
            )
        self.epoch = epoch
        if expected_index < self.next_block_index:
            raise IntegrityError(
                f"the world would generate block {expected_index} again, and block "
                f"{self.next_block_index - 1} was already delivered",
                reason="BLOCKS_LOST",
            )
        self._next_action_index = max(self._next_action_index, expected_index)
        return [numbered for numbered in self._unanswered if numbered[0] >= expected_index]

    def received(self, block_index: int, epoch: int) -> bool:
        """A block arrived; True: deliver it, False: it was delivered before.

        Raises:
            IntegrityError: a block before it never came.
        """
        if block_index < self.next_block_index:
            return False
        if block_index > self.next_block_index:
            raise IntegrityError(
                f"block {block_index} arrived where {self.next_block_index} was next: the blocks "
                "between are gone; join anew from the world's present block",
                reason="BLOCKS_LOST",
            )
        self.epoch = max(self.epoch, epoch)
        self.next_block_index += 1
        self._next_action_index = max(self._next_action_index, self.next_block_index)
        while self._unanswered and self._unanswered[0][0] < self.next_block_index:
            self._unanswered.popleft()
        return True
