"""Profile: what the quanta of each request shape take on this engine, learned while it serves."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from services.engine.expected import Expected
from services.engine.world import WorldModel
from worldline.admissibility.profile_row import (
    ROW_AGE_MAX_MS,
    ProfileRow,
    QuantumSpread,
    RequestShape,
)
from worldline.errors import InvalidInput
from worldline.numa import Binding

#: Quanta of a kind that a row is made of. Enough that its 95th percentile is six of them, and at
#: ten quanta a second no older than half a minute.
WINDOW = 128


_UNMEASURED = Expected()


class _Latest:
    """The latest durations, in order of time and in order of size."""

    def __init__(self) -> None:
        self._by_time: deque[float] = deque()
        self._by_size: list[float] = []
        self._samples = 0

    def add(self, duration_ms: float) -> None:
        if len(self._by_time) == WINDOW:
            oldest = self._by_time.popleft()
            del self._by_size[bisect_left(self._by_size, oldest)]
        self._by_time.append(duration_ms)
        insort(self._by_size, duration_ms)
        self._samples += 1

    @property
    def empty(self) -> bool:
        return not self._by_size

    def quantile(self, part: float) -> float:
        """The smallest that `part` of them do not exceed (nearest rank)."""
        return self._by_size[math.ceil(part * len(self._by_size)) - 1]

    def spread(self) -> QuantumSpread | None:
        if self.empty:
            return None
        return QuantumSpread(self._samples, self.quantile(0.5), self.quantile(0.95))


class _Learned:
    """What is known of one shape."""

    def __init__(self, quanta_per_block: int, denoising_steps: int) -> None:
        self.quanta_per_block = quanta_per_block
        self.denoising_steps = denoising_steps
        self.step, self.closing = _Latest(), _Latest()
        self.latest_at = -math.inf
        self.expected = _UNMEASURED

    def add(self, quantum_ms: float, *, closing: bool, now: float) -> None:
        (self.closing if closing else self.step).add(quantum_ms)
        self.latest_at = now
        step_s, closing_s = (
            0.0 if kind.empty else kind.quantile(0.95) / 1e3 for kind in (self.step, self.closing)
        )
        expected = Expected(step_s or closing_s, closing_s or step_s)
        # The same object as long as nothing changes: who has reckoned with it need not again.
        if expected != self.expected:
            self.expected = expected

    def spreads(self) -> tuple[QuantumSpread | None, QuantumSpread] | None:
        """Of steps and of the last quantum; None before a whole block was seen."""
        step, closing = self.step.spread(), self.closing.spread()
        if closing is None or (step is None and self.quanta_per_block > 1):
            return None
        return step, closing


class Profiles:
    """Rows by request shape, all of one device and one binding. `now` in seconds, monotonic."""

    def __init__(self, device: str = "cpu", binding: Binding | None = None) -> None:
        self._device = device
        self._binding = binding or Binding(frozenset())
        self._learned: dict[RequestShape, _Learned] = {}

    @property
    def binding(self) -> Binding:
        """Where the quanta ran that the rows are of."""
        return self._binding

    def bind(self, binding: Binding) -> bool:
        """From now on quanta run there; True where that is elsewhere: what was known is forgotten.

        A row of another binding is no row of this one (33 % slower on the far NUMA node; section
        6.6), not even a first guess.
        """
        if binding == self._binding:
            return False
        self._binding = binding
        self._learned.clear()
        return True

    def add(
        self,
        shape: RequestShape,
        model: WorldModel,
        quantum_ms: float,
        *,
        closing: bool,
        now: float,
    ) -> None:
        """Take in one measured quantum; `closing` is the last of its block."""
        if not 0.0 < quantum_ms < math.inf:
            return  # a clock that stood still measures nothing
        known = self._learned.get(shape)
        if known is None or _stale(known, now):
            known = _Learned(model.quanta_per_block, model.denoising_steps)
            self._learned[shape] = known
        known.add(quantum_ms, closing=closing, now=now)

    def quantum_s(self, shape: RequestShape) -> float:
        """Seconds that hardly any quantum of that shape exceeds; 0 before the first sample."""
        known = self._learned.get(shape)
        if known is None:
            return 0.0
        kinds = (known.step, known.closing)
        return max((kind.quantile(0.95) for kind in kinds if not kind.empty), default=0.0) / 1e3

    def expected(self, shape: RequestShape) -> Expected:
        """The same by kind of quantum; where one kind was not seen yet the other stands for it."""
        known = self._learned.get(shape)
        return _UNMEASURED if known is None else known.expected

    def row(self, shape: RequestShape, now: float) -> ProfileRow | None:
        """The row of that shape; None where none was measured, or not for too long."""
        known = self._learned.get(shape)
        spreads = None if known is None or _stale(known, now) else known.spreads()
        if known is None or spreads is None:
            return None
        with suppress(InvalidInput):  # a duration beyond all bounds makes no row
            return ProfileRow(
                shape=shape,
                binding=self._binding,
                device=self._device,
                quanta_per_block=known.quanta_per_block,
                denoising_steps=known.denoising_steps,
                step=spreads[0],
                closing=spreads[1],
                age_ms=max(0.0, (now - known.latest_at) * 1e3),
            )
        return None

    def rows(self, now: float) -> tuple[ProfileRow, ...]:
        """All of them, by name of the shape."""
        return tuple(self._rows(now))

    def _rows(self, now: float) -> Iterator[ProfileRow]:
        for shape in sorted(self._learned, key=lambda one: one.name):
            row = self.row(shape, now)
            if row is not None:
                yield row


def _stale(known: _Learned, now: float) -> bool:
    return (now - known.latest_at) * 1e3 > ROW_AGE_MAX_MS
