"""Metrics: names, units, and that a figure arrives as what it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from services.mover.slots import SlotRole
from services.placement.move_task import _TIMED
from services.placement.records import SessionState
from worldline.telemetry import Telemetry, catalogue, instruments, start
from worldline.telemetry.catalogue import Kind

#: UCUM: a unit, or what is counted in braces (semantic-conventions, docs/general/metrics.md).
_UNIT = re.compile(r"s|By|By/s|\{[a-z]+\}")


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def telemetry(reader: InMemoryMetricReader) -> Iterator[Telemetry]:
    started = start("test", metric_readers=[reader])
    yield started
    started.shutdown()


def collected(reader: InMemoryMetricReader) -> dict[str, Any]:
    data = reader.get_metrics_data()
    if data is None:
        return {}
    return {
        metric.name: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def points(reader: InMemoryMetricReader, name: str) -> dict[tuple[str, ...], Any]:
    return {
        tuple(point.attributes.values()): point
        for point in collected(reader)[name].data.data_points
    }


def record_everything(telemetry: Telemetry) -> None:
    found = instruments()
    found.move_ended("aborted", "PEER_GONE", frozen_ms=20)
    found.move_timed(20, 30)
    found.phase_ended("push", 1.5)
    found.reaped("hold")
    found.wire_bytes(1024, "transmit")
    found.wire_waited(3, "receive")
    found.verified(4, "landing")
    found.path_rate(2e9, "node-1", "node-2", verified=True)
    found.path_mismatch("node-1", "node-2")
    found.verdict("RECEIVER_BUSY")
    found.block_generated("tiny", 30)
    found.quantum_ended("tiny", 7)
    found.period_missed("tiny")
    found.releases_skipped("tiny", 3)
    found.block_degraded("tiny")
    telemetry.observe(catalogue.SESSIONS, lambda: {("live",): 3})
    telemetry.observe(catalogue.LEASES, lambda: {("node",): 2, ("engine",): 1})
    telemetry.observe(catalogue.SLOTS, lambda: {("free",): 4})


def test_every_metric_of_the_catalogue_arrives_as_it_is_described(
    telemetry: Telemetry, reader: InMemoryMetricReader
) -> None:
    """Adding one to the catalogue without reporting it fails here."""
    record_everything(telemetry)
    found = collected(reader)
    # Nothing drops spans where nobody takes them.
    told = {each.name: each for each in catalogue.METRICS} | {}
    del told[catalogue.SPANS_DROPPED.name]
    assert {name: (each.unit, each.description) for name, each in found.items()} == {
        name: (each.unit, each.description) for name, each in told.items()
    }
    for name, each in found.items():
        labels = {label.name for label in told[name].labels}
        assert all(set(point.attributes) == labels for point in each.data.data_points), name
        if told[name].kind is Kind.HISTOGRAM:
            (point,) = each.data.data_points
            assert tuple(point.explicit_bounds) == told[name].bounds
        elif told[name].kind is Kind.OBSERVED_SUM:
            assert not each.data.is_monotonic
        else:
            assert each.data.is_monotonic


def test_names_and_units_are_the_conventions() -> None:
    for metric in catalogue.METRICS:
        assert re.fullmatch(r"worldline(\.[a-z_]+)+", metric.name)
        assert _UNIT.fullmatch(metric.unit), metric
        assert not metric.name.endswith("total")
        if metric.kind is Kind.HISTOGRAM:
            assert metric.bounds == tuple(sorted(set(metric.bounds)))
        if metric.unit == "s":
            assert metric.name.endswith(".duration")
        if metric.kind is Kind.OBSERVED_SUM:
            assert metric.name.endswith(".count")


def test_durations_are_seconds_and_counts_add_up(
    telemetry: Telemetry, reader: InMemoryMetricReader
) -> None:
    for _ in range(2):
        record_everything(telemetry)
    (frozen,) = points(reader, "worldline.move.frozen.duration").values()
    assert (frozen.count, frozen.sum) == (2, pytest.approx(0.040))
    assert points(reader, "worldline.moves")["aborted", "PEER_GONE"].value == 2
    assert points(reader, "worldline.missed_periods")["tiny",].value == 2
    assert points(reader, "worldline.skipped_releases")["tiny",].value == 6
    assert points(reader, "worldline.wire.io")["transmit",].value == 2048
    assert points(reader, "worldline.lease.count")["node",].value == 2


@pytest.mark.parametrize(
    ("frozen_ms", "timeliness"), [(29.9, "on_time"), (30.0, "on_time"), (30.1, "missed")]
)
def test_a_move_is_on_time_within_its_horizon(
    telemetry: Telemetry, reader: InMemoryMetricReader, frozen_ms: float, timeliness: str
) -> None:
    instruments().move_timed(frozen_ms, 30.0)
    assert list(points(reader, "worldline.move.deadlines")) == [(timeliness,)]


def test_enumerated_labels_are_the_enumerations() -> None:
    states = {one.value for one in SessionState if one is not SessionState.CLOSED}
    assert catalogue.SESSION_STATE.values == states
    assert catalogue.ROLE.values == {one.name.lower() for one in SlotRole}
    assert catalogue.PHASE.values == set(_TIMED.values())


def test_a_reading_that_fails_costs_one_metric(
    telemetry: Telemetry, reader: InMemoryMetricReader
) -> None:
    def broken() -> dict[tuple[str, ...], float]:
        raise RuntimeError("gone")

    telemetry.observe(catalogue.SESSIONS, broken)
    telemetry.observe(catalogue.SLOTS, lambda: {("free",): 4})
    found = collected(reader)
    assert "worldline.slot.count" in found
    assert not found.get("worldline.session.count") or not points(reader, "worldline.session.count")


def test_nobodys_reading_is_called_after_the_shutdown(reader: InMemoryMetricReader) -> None:
    """What they read is gone by then; the collector's last look comes after."""
    started = start("test", metric_readers=[reader])
    calls: list[int] = []

    def read() -> dict[tuple[str, ...], float]:
        calls.append(1)
        return {("free",): 1}

    started.observe(catalogue.SLOTS, read)
    collected(reader)
    before = len(calls)
    assert before == 1
    started.shutdown()
    started.observe(catalogue.SLOTS, read)
    collected(reader)
    assert len(calls) == before


def test_a_second_reading_replaces_the_first(
    telemetry: Telemetry, reader: InMemoryMetricReader
) -> None:
    telemetry.observe(catalogue.SLOTS, lambda: {("free",): 1})
    telemetry.observe(catalogue.SLOTS, lambda: {("free",): 2})
    assert points(reader, "worldline.slot.count")["free",].value == 2


def test_without_a_start_recording_does_nothing() -> None:
    instruments().move_ended("committed")
    instruments().block_generated("tiny", 1)
