"""Journal: what was done, what came of it, and what must not have been."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Journal:
    """Kept by everybody; `say` gets each line as it is written."""

    say: Callable[[str], None]
    #: (what was asked, how it ended) to how often.
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: What breaks a promise; empty is the aim.
    findings: list[str] = field(default_factory=list)
    blocks: int = 0
    #: When something last happened to a process, on the monotonic clock.
    _troubled_s: dict[str, float] = field(default_factory=dict)
    _began_s: float = field(default_factory=time.monotonic)

    def fault_began(self, process: str, kind: str, lasts_s: float) -> None:
        """`process` fails from now on, for about `lasts_s`."""
        self.faults[process.partition("-")[0], kind] += 1
        self._troubled_s[process] = time.monotonic()
        self._line(f"{kind} {process} for {lasts_s:.1f} s")

    def fault_ended(self, process: str) -> None:
        """It serves again; what its absence leads to may come later."""
        self._troubled_s[process] = time.monotonic()
        self._line(f"{process} is back")

    def troubled_since(self, node_id: str, since_s: float) -> bool:
        """Whether anything happened to a process of the node from `since_s` on."""
        names = (f"engine-{node_id}", f"mover-{node_id}")
        return any(self._troubled_s.get(name, -math.inf) >= since_s for name in names)

    def ended(self, what: str, how: str) -> None:
        """Something that was asked ended so."""
        self.outcomes[what, how] += 1

    def found(self, finding: str) -> None:
        """A promise was broken."""
        self.findings.append(finding)
        self._line(f"FOUND {finding}")

    def note(self, text: str) -> None:
        """A line for people."""
        self._line(text)

    def _line(self, text: str) -> None:
        self.say(f"{time.monotonic() - self._began_s:7.1f} s  {text}")
