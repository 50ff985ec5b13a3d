"""Instruments: the project's metrics, named after OpenTelemetry's conventions.

Durations are in seconds and sizes in bytes on the wire, as the conventions ask; the functions
take the project's own units and convert.
"""

from __future__ import annotations

from opentelemetry.metrics import Meter, get_meter

#: Seconds; frozen times run from a few milliseconds (paper, section 7) to tens of seconds on CPUs.
_DURATION_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip


class Instruments:
    """Every metric that Worldline reports, on one meter."""

    def __init__(self, meter: Meter) -> None:
        self._moves = meter.create_counter(
            "worldline.moves", unit="{move}", description="Moves that ended, by outcome and reason"
        )
        self._frozen = meter.create_histogram(
            "worldline.move.frozen.duration",
            unit="s",
            description="From the source's freeze to the target's activation",
            explicit_bucket_boundaries_advisory=_DURATION_BOUNDS_S,
        )
        self._phase = meter.create_histogram(
            "worldline.move.phase.duration",
            unit="s",
            description="One phase of a move",
            explicit_bucket_boundaries_advisory=_DURATION_BOUNDS_S,
        )
        self._wire = meter.create_counter(
            "worldline.wire.io", unit="By", description="Bytes on the wire, by direction"
        )
        self._rate = meter.create_histogram(
            "worldline.path.rate", unit="By/s", description="Rate of one push, by source and target"
        )
        self._mismatches = meter.create_counter(
            "worldline.path.mismatches",
            unit="{mismatch}",
            description="Pushes whose bytes differed at the target, by source and target",
        )
        self._verdicts = meter.create_counter(
            "worldline.admission.verdicts", unit="{verdict}", description="Verdicts, by reason"
        )
        self._blocks = meter.create_counter(
            "worldline.blocks", unit="{block}", description="Blocks generated"
        )
        self._block = meter.create_histogram(
            "worldline.block.duration",
            unit="s",
            description="Generation of one block",
            explicit_bucket_boundaries_advisory=_DURATION_BOUNDS_S,
        )
        self._missed = meter.create_counter(
            "worldline.missed_periods",
            unit="{period}",
            description="Periods that ended before their block was generated",
        )

    def move_ended(self, outcome: str, reason: str = "", frozen_ms: float = 0.0) -> None:
        """Count one ended move: outcome committed, aborted or rejected; reason empty if none."""
        attributes = {"worldline.outcome": outcome, "worldline.reason": reason}
        self._moves.add(1, attributes)
        if frozen_ms > 0:
            self._frozen.record(frozen_ms / 1e3, {"worldline.outcome": outcome})

    def phase_ended(self, name: str, duration_ms: float) -> None:
        """Record the duration of one phase of a move."""
        self._phase.record(duration_ms / 1e3, {"worldline.phase": name})

    def wire_bytes(self, size_bytes: int, direction: str) -> None:
        """Count bytes that this process put on (`transmit`) or took off (`receive`) the wire."""
        self._wire.add(size_bytes, {"network.io.direction": direction})

    def path_rate(self, rate_bytes_per_s: float, source: str, target: str) -> None:
        """Record the rate of one push between two nodes."""
        attributes = {"worldline.source": source, "worldline.target": target}
        self._rate.record(rate_bytes_per_s, attributes)

    def path_mismatch(self, source: str, target: str) -> None:
        """Count one digest mismatch on a path: a bad route must not vanish in averages."""
        self._mismatches.add(1, {"worldline.source": source, "worldline.target": target})

    def verdict(self, reason: str) -> None:
        """Count one verdict: `admitted`, or the reject's reason."""
        self._verdicts.add(1, {"worldline.reason": reason})

    def block_generated(self, preset: str, generate_ms: float) -> None:
        """Count one generated block and what it took."""
        attributes = {"worldline.preset": preset}
        self._blocks.add(1, attributes)
        self._block.record(generate_ms / 1e3, attributes)

    def period_missed(self, preset: str, periods: int = 1) -> None:
        """Count periods that ended before their block was there."""
        self._missed.add(periods, {"worldline.preset": preset})


class _Current:
    """The instruments in use: on the API's meter (a no-op by default) until `start`."""

    instruments: Instruments = Instruments(get_meter("worldline"))


def instruments() -> Instruments:
    """The process's instruments."""
    return _Current.instruments


def use_meter(meter: Meter | None) -> None:
    """Make new instruments on `meter`; None goes back to the API's."""
    _Current.instruments = Instruments(meter if meter is not None else get_meter("worldline"))
