"""Chore: work that an engine does for itself, and what it claims of the schedule. Pure.

Making a state, checking and measuring a preset, copying a branch: maintenance (C5), in parts. A
part waits like bulk: it runs where no other claim can, and where it fits the headroom. So that a
chore ends under any load, a part is hard once it has waited for ten times its own length, two
seconds at most, and goes next: a chore gets an eleventh of the device if it must, and takes no more
than that from worlds that need all of it. One that a world stands still for, in a fork or a move,
waits for no more than its own length.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from services.engine.schedule import Claim
from worldline.contract import ServiceClass

#: A part waits for so many times its own length.
WAIT_RATIO = 10.0
#: The same while a world stands still for it.
STANDING_RATIO = 1.0
#: And never longer than this: a preset that is measured has a dozen quanta, and placement waits for
#: them for 90 s.
WAIT_MAX_S = 2.0
#: The longest of so many of the latest parts tells how long the next one takes; a block of the
#: built-in models has as many quanta.
RECENT_PARTS = 4


@dataclass
class Turns:
    """What the schedule must know of a chore. Seconds on one monotonic clock."""

    chore_id: str
    #: When it was asked for.
    asked_at: float
    #: A world stands still until it ends.
    stands: bool = False
    #: Since when its next part waits: since the schedule was first asked about it.
    waits_since: float = math.inf
    _latest_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_PARTS))

    @property
    def expected_s(self) -> float:
        """What the next part may take; 0 before the first."""
        return max(self._latest_s, default=0.0)

    @property
    def hard_at(self) -> float:
        """From when on its next part waits no longer."""
        ratio = STANDING_RATIO if self.stands else WAIT_RATIO
        return self.waits_since + min(WAIT_MAX_S, ratio * self.expected_s)

    def took(self, part_s: float) -> None:
        """A part is done. What passes until the schedule is asked again is nobody's wait: else a
        short part would be hard by then, and two would follow each other before a quantum.
        """
        self._latest_s.append(part_s)
        self.waits_since = math.inf

    def claim(self, now: float) -> Claim:
        """What it claims of the choice that is made now."""
        self.waits_since = min(self.waits_since, now)
        is_hard = now >= self.hard_at
        return Claim(
            session_id=self.chore_id,
            service_class=ServiceClass.C5_MAINTENANCE,
            release_at=0.0,
            deadline_at=math.inf,
            arrived_at=self.asked_at,
            mid_block=is_hard,
            quantum_s=self.expected_s,
            left_s=self.expected_s,
            # Before all that is late: else whoever is always late would keep it for ever.
            boundary_by=-math.inf if is_hard else math.inf,
        )
