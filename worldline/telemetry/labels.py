"""Label: what one figure of a metric is told apart by, of bounded variety whatever arrives.

A label's values are an enumeration, or names (of nodes, presets, reasons) of which only so many are
told apart; the rest is `other`. Ids of sessions and moves are in traces and never here.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass

OTHER = "other"
#: Combinations of one metric that are told apart: sixteen nodes' paths, both ways, fit.
SETS_MAX = 256
#: A name of somebody's choice: as long as an identifier may be, and without anything odd in it.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}")


@dataclass(frozen=True, slots=True)
class Label:
    """One label. `values` are all that it can be; empty: names, as many as there is room for."""

    name: str
    values: frozenset[str] = frozenset()

    @property
    def is_open(self) -> bool:
        """Whether somebody else chooses its values."""
        return not self.values

    def checked(self, value: str) -> str:
        """The value as it is reported: itself where it can be one, else `other`."""
        known = value in self.values if self.values else _NAME.fullmatch(value) is not None
        return value if known else OTHER


class LabelSets:
    """The combinations of values that one metric has seen, at most `sets_max` of them.

    Beyond that, names become `other` and enumerations stay what they are. Safe from any thread.
    """

    def __init__(self, labels: tuple[Label, ...], sets_max: int = SETS_MAX) -> None:
        self._labels = labels
        self._sets_max = sets_max
        self._known: dict[tuple[str, ...], dict[str, str]] = {}
        self._lock = threading.Lock()

    def of(self, values: tuple[str, ...]) -> dict[str, str]:
        """The attributes of these values, in the labels' order; not to be changed."""
        found = self._known.get(values)
        return self._look_up(values) if found is None else found

    def _look_up(self, values: tuple[str, ...]) -> dict[str, str]:
        pairs = zip(self._labels, values, strict=True)
        checked = tuple(label.checked(value) for label, value in pairs)
        with self._lock:
            full = len(self._known) >= self._sets_max
            if full and checked not in self._known and any(each.is_open for each in self._labels):
                pairs = zip(self._labels, checked, strict=True)
                checked = tuple(OTHER if each.is_open else value for each, value in pairs)
            names = (label.name for label in self._labels)
            return self._known.setdefault(checked, dict(zip(names, checked, strict=True)))
