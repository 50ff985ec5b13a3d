"""Scripted: a generator of episodes that says when, and then never again."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence


class Scripted(random.Random):
    """How much hazard is left until an episode, receiver by receiver as a fabric asks.

    An empty script is a fabric without stalls.
    """

    def __init__(self, hazards: Sequence[float] = ()) -> None:
        super().__init__(0)
        self._hazards = list(hazards)

    def expovariate(self, lambd: float = 1.0) -> float:
        return self._hazards.pop(0) if self._hazards else math.inf
