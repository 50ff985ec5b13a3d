"""Instruments: where services report the catalogue's metrics.

Durations are in seconds and sizes in bytes on the wire, as the conventions ask; the functions
take the project's own units and convert.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

import structlog
from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

from worldline.telemetry import catalogue
from worldline.telemetry.catalogue import Kind, Metric
from worldline.telemetry.labels import LabelSets

_log = structlog.get_logger(__name__)

#: Figures by the values of their labels, read when somebody collects; from any thread.
Reading = Callable[[], Mapping[tuple[str, ...], float]]


class _Histogram:
    """One histogram and the labels that it has seen."""

    __slots__ = ("_record", "_sets")

    def __init__(self, meter: Meter, metric: Metric) -> None:
        self._sets = LabelSets(metric.labels)
        self._record = meter.create_histogram(
            metric.name,
            metric.unit,
            metric.description,
            explicit_bucket_boundaries_advisory=metric.bounds,
        ).record

    def __call__(self, figure: float, *values: str) -> None:
        self._record(figure, self._sets.of(values))


class _Counter:
    """One counter. It adds up by itself and tells whoever collects: the SDK's own takes dozens of
    times as long to add, each time, on the thread that has something to do.
    """

    __slots__ = ("_lock", "_sets", "_totals")

    def __init__(self, meter: Meter, metric: Metric) -> None:
        self._sets = LabelSets(metric.labels)
        self._totals: dict[int, tuple[dict[str, str], float]] = {}
        self._lock = threading.Lock()
        meter.create_observable_counter(
            metric.name, [self._observe], metric.unit, metric.description
        )

    def __call__(self, figure: float, *values: str) -> None:
        attributes = self._sets.of(values)
        with self._lock:
            # The set of labels keeps its attributes, so that their identity is theirs for good.
            _, before = self._totals.get(id(attributes), (attributes, 0))
            self._totals[id(attributes)] = (attributes, before + figure)

    def _observe(self, _options: CallbackOptions) -> list[Observation]:
        with self._lock:
            totals = list(self._totals.values())
        return [Observation(total, attributes) for attributes, total in totals]


class Instruments:
    """Every metric that Worldline reports, on one meter."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._readings: dict[str, Reading] = {}
        self._observed: set[str] = set()
        self._moves = _Counter(meter, catalogue.MOVES)
        self._deadlines = _Counter(meter, catalogue.MOVE_DEADLINES)
        self._frozen = _Histogram(meter, catalogue.MOVE_FROZEN)
        self._phase = _Histogram(meter, catalogue.MOVE_PHASE)
        self._reaps = _Counter(meter, catalogue.REAPS)
        self._verdicts = _Counter(meter, catalogue.VERDICTS)
        self._rate = _Histogram(meter, catalogue.PATH_RATE)
        self._mismatches = _Counter(meter, catalogue.PATH_MISMATCHES)
        self._wire = _Counter(meter, catalogue.WIRE_IO)
        self._wire_wait = _Histogram(meter, catalogue.WIRE_WAIT)
        self._verify = _Histogram(meter, catalogue.VERIFY)
        self._blocks = _Counter(meter, catalogue.BLOCKS)
        self._block = _Histogram(meter, catalogue.BLOCK)
        self._quantum = _Histogram(meter, catalogue.QUANTUM)
        self._missed = _Counter(meter, catalogue.MISSED_PERIODS)
        self._skipped = _Counter(meter, catalogue.SKIPPED_RELEASES)
        self._degraded = _Counter(meter, catalogue.DEGRADED_BLOCKS)

    def observe(self, metric: Metric, read: Reading) -> None:
        """Report what `read` gives whenever somebody collects; a second one replaces the first.

        `read` is called on the collector's thread and must not wait for long.
        """
        self._readings[metric.name] = read
        if metric.name in self._observed:
            return
        self._observed.add(metric.name)
        sets = LabelSets(metric.labels)

        def observed(_options: CallbackOptions) -> Iterable[Observation]:
            return self._read(metric, sets)

        create = (
            self._meter.create_observable_counter
            if metric.kind is Kind.OBSERVED_COUNTER
            else self._meter.create_observable_up_down_counter
        )
        create(metric.name, [observed], metric.unit, metric.description)

    def _read(self, metric: Metric, sets: LabelSets) -> list[Observation]:
        read = self._readings.get(metric.name)
        if read is None:
            return []
        try:
            figures = read()
        except Exception as error:
            # One figure less in this collection; the others are somebody's alarms.
            _log.warning("metric.unread", metric=metric.name, error=str(error))
            return []
        return [Observation(figure, sets.of(values)) for values, figure in figures.items()]

    def stop_observing(self) -> None:
        """Call nobody's reading any more: what they read is about to go."""
        self._readings.clear()

    def move_ended(self, outcome: str, reason: str = "", frozen_ms: float = 0.0) -> None:
        """Count one ended move: outcome committed, aborted or rejected; reason empty if none."""
        self._moves(1, outcome, reason or "none")
        if frozen_ms > 0:
            self._frozen(frozen_ms / 1e3, outcome)

    def move_timed(self, frozen_ms: float, horizon_ms: float) -> None:
        """Count one committed move as on time, or as later than its session's horizon."""
        self._deadlines(1, "on_time" if frozen_ms <= horizon_ms else "missed")

    def phase_ended(self, name: str, duration_ms: float) -> None:
        """Record the duration of one phase of a move."""
        self._phase(duration_ms / 1e3, name)

    def reaped(self, what: str, count: int = 1) -> None:
        """Count what a reaper ended: session, hold, reservation, slot or parked."""
        if count:
            self._reaps(count, what)

    def wire_bytes(self, size_bytes: int, direction: str) -> None:
        """Count bytes that this process put on (`transmit`) or took off (`receive`) the wire."""
        self._wire(size_bytes, direction)

    def wire_waited(self, wait_ms: float, direction: str) -> None:
        """Record how long a push (`transmit`) or a landing (`receive`) waited for its wire."""
        self._wire_wait(wait_ms / 1e3, direction)

    def verified(self, duration_ms: float, verification: str) -> None:
        """Record what verifying took: `landing` after the last byte, or `read_back`."""
        self._verify(duration_ms / 1e3, verification)

    def path_rate(
        self, rate_bytes_per_s: float, source: str, target: str, *, verified: bool
    ) -> None:
        """Record the rate of one push between two nodes."""
        self._rate(rate_bytes_per_s, source, target, "true" if verified else "false")

    def path_mismatch(self, source: str, target: str) -> None:
        """Count one digest mismatch on a path: a bad route must not vanish in averages."""
        self._mismatches(1, source, target)

    def verdict(self, reason: str) -> None:
        """Count one verdict: `admitted`, or the reject's reason."""
        self._verdicts(1, reason)

    def block_generated(self, preset: str, generate_ms: float) -> None:
        """Count one generated block and what it took."""
        self._blocks(1, preset)
        self._block(generate_ms / 1e3, preset)

    def quantum_ended(self, preset: str, quantum_ms: float) -> None:
        """Record one quantum."""
        self._quantum(quantum_ms / 1e3, preset)

    def period_missed(self, preset: str) -> None:
        """Count one block that was generated after its deadline."""
        self._missed(1, preset)

    def releases_skipped(self, preset: str, count: int) -> None:
        """Count releases of a period that passed without a block."""
        self._skipped(count, preset)

    def block_degraded(self, preset: str) -> None:
        """Count one block of fewer denoising steps than full quality has."""
        self._degraded(1, preset)


class _Current:
    """The instruments in use: on the API's meter (a no-op by default) until `start`."""

    instruments: Instruments = Instruments(get_meter("worldline"))


def instruments() -> Instruments:
    """The process's instruments."""
    return _Current.instruments


def use_meter(meter: Meter | None) -> None:
    """Make new instruments on `meter`; None goes back to the API's."""
    _Current.instruments.stop_observing()
    _Current.instruments = Instruments(meter if meter is not None else get_meter("worldline"))
