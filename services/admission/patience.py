"""Patience: who comes back before being told to is told to stay away longer, each time.

Doubling with the repeats, as in truncated binary exponential backoff (IEEE 802.3, section 4), but
by whoever answers: a client that obeys is never told more than the arithmetic says.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from worldline.verdict import RejectReason, Verdict

#: Measure, or tell: whoever does so is right to be back early.
_ACT_AT_ONCE = frozenset({RejectReason.PATH_UNMEASURED, RejectReason.RELEARNING})


@dataclass(frozen=True, slots=True)
class _Told:
    """When somebody may come back, and how often they came before that."""

    back_at_s: float
    early: int


class Patience:
    """What clients were told about which session; the `entries_max` told last are remembered."""

    def __init__(self, entries_max: int, wait_max_ms: int) -> None:
        self._entries_max = entries_max
        self._wait_max_ms = wait_max_ms
        #: Told longest ago first.
        self._told: OrderedDict[tuple[str, str], _Told] = OrderedDict()

    def __len__(self) -> int:
        return len(self._told)

    def rejected(self, verdict: Verdict, client_id: str, session_id: str, now_s: float) -> Verdict:
        """The verdict with its `retry_after_ms` grown where this client did not wait.

        A reject that waiting does not cure stays as it is, and so does one that asks for something
        to be done at once.
        """
        if verdict.retry_after_ms == 0 or verdict.reason in _ACT_AT_ONCE:
            return verdict
        key = (client_id, session_id)
        told = self._told.pop(key, None)
        early = told.early + 1 if told is not None and now_s < told.back_at_s else 0
        # 2^early beyond any bound needs not be computed.
        grown_ms = verdict.retry_after_ms << min(early, 32)
        wait_ms = max(verdict.retry_after_ms, min(grown_ms, self._wait_max_ms))
        self._told[key] = _Told(now_s + wait_ms / 1e3, early)
        if len(self._told) > self._entries_max:
            self._told.popitem(last=False)
        return verdict if wait_ms == verdict.retry_after_ms else _longer(verdict, wait_ms, early)

    def admitted(self, client_id: str, session_id: str) -> None:
        """Forget: the next reject is a first one."""
        self._told.pop((client_id, session_id), None)


def _longer(verdict: Verdict, wait_ms: int, early: int) -> Verdict:
    numbers = {
        **verdict.numbers,
        "asked_early": float(early),
        "retry_computed_ms": float(verdict.retry_after_ms),
    }
    return replace(verdict, numbers=numbers, retry_after_ms=wait_ms)
