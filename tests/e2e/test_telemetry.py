"""Telemetry that arrives: real services, and a collector that is a server of its own."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import cycle
from pathlib import Path
from xml.etree import ElementTree

import pytest
import pytest_asyncio
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

from tests.e2e.collector import BlackHole, Collector, Received, plain
from tests.e2e.conftest import FAULTY_MOVER, PATIENT, ROOT, SEED, SLOTS, Fault
from tests.oracles import bounded, play, script, until
from worldline.cli.cluster import LocalCluster
from worldline.cli.parts import ClusterOptions, NodeOptions
from worldline.sdk import Client
from worldline.sdk.move_record import MovePhase
from worldline.sdk.session import Session
from worldline.telemetry import catalogue
from worldline.telemetry.catalogue import Kind
from worldline.telemetry.labels import OTHER

# A cluster's start is most of each test, and takes a loaded machine a minute and more.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

#: Nothing here is about how soon.
PATIENT_S = 60.0
#: What every service gets: a collector that is slow is not one that is away.
VARIABLES = {"flush_s": "30"}


def options(collector: str, nodes: NodeOptions | None = None, **env: str) -> ClusterOptions:
    """Two nodes that send to that collector, with time to do so, and answer Prometheus."""
    node = nodes or NodeOptions()
    node = NodeOptions(
        mover_entry=node.mover_entry,
        mover_variables={**VARIABLES, **node.mover_variables},
        engine_variables=VARIABLES,
        env=node.env,
    )
    return ClusterOptions(
        slots=SLOTS,
        slot_bytes=16 << 20,
        metrics=True,
        env={
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "30",
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
            **env,
        },
        admission_variables=VARIABLES,
        placement_variables=VARIABLES,
        node_options={"node-1": node, "node-2": node},
    )


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def traced_cluster(collector: Collector) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(options(collector.address)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def traced_client(traced_cluster: LocalCluster) -> AsyncIterator[Client]:
    async with Client(traced_cluster.placement_address) as connected:
        yield connected


def root_of(spans: list[Received], move_id: str) -> Received | None:
    found = [each for each in spans if each.name == "move"]
    return next((each for each in found if each.attributes["move_id"] == move_id), None)


async def whole_trace(
    collector: Collector, move_id: str, wanted: set[tuple[str, str]]
) -> list[Received]:
    """The move's spans once its root, the wanted and every parent have come.

    The wanted are names of spans and the instances that send them, each when it likes.
    """
    trace: list[Received] = []

    async def missing() -> list[str]:
        root = root_of(collector.spans(), move_id)
        if root is None:
            return [f"no root of {move_id}"]
        trace[:] = collector.spans(root.trace_id)
        known = {each.span_id for each in trace} | {""}
        orphans = [each.name for each in trace if each.parent_id not in known]
        absent = wanted - {(each.name, each.instance) for each in trace}
        return [f"orphan {name}" for name in orphans] + [f"no {each}" for each in absent]

    await until(missing, PATIENT_S)
    return trace


async def span_of(collector: Collector, wanted: str, holds: Callable[[Received], bool]) -> Received:
    """One span for which `holds`, once it has come; `wanted` says what is missing else."""
    found: list[Received] = []

    async def missing() -> list[str]:
        found[:] = filter(holds, collector.spans())
        return [] if found else [f"no {wanted}"]

    await until(missing, PATIENT_S)
    return found[0]


async def play_through_a_move(session: Session, target: str) -> str:
    """Move while a client streams, play on at the target, end the stream; the move's id."""
    moved = asyncio.Event()
    begun = asyncio.Event()

    async def watch() -> None:
        epochs = set()
        async for block in session.play(cycle(script(40))):
            begun.set()
            epochs.add(block.epoch)
            if moved.is_set() and len(epochs) > 1:
                break

    async with bounded(PATIENT_S * 4), asyncio.TaskGroup() as group:
        group.create_task(watch())
        await begun.wait()
        record = await session.move(target)
        record.raise_unless_committed()
        moved.set()
    return record.move_id


async def test_one_trace_of_a_move_over_every_party_and_links_both_ways(
    collector: Collector, traced_client: Client
) -> None:
    async with await traced_client.open(
        "tiny", seed=SEED, contract=PATIENT, node="node-1"
    ) as session:
        move_id = await play_through_a_move(session, "node-2")
        session_id = session.session_id
    trace = await whole_trace(
        collector,
        move_id,
        {
            ("admission.admit", "admission"),
            ("mover.push", "node-1"),
            ("mover.land", "node-2"),
            ("engine.freeze", "node-1-cpu"),
            ("engine.activate", "node-2-cpu"),
        },
    )
    assert len({each.trace_id for each in trace}) == 1
    # One root, to which every span of every process leads.
    (root,) = [each for each in trace if not each.parent_id]
    assert root.name == "move"
    assert root.attributes["outcome"] == "committed"
    assert not root.failed
    by_name = {each.name: each for each in trace}
    # Children end within their parents' process's knowledge: each has begun and ended.
    assert all(each.raw.end_time_unix_nano >= each.raw.start_time_unix_nano for each in trace)

    opening = await span_of(
        collector,
        "opening of the session",
        lambda one: one.name == "session.open" and one.attributes["session_id"] == session_id,
    )
    assert (opening.trace_id, opening.span_id) in root.linked()
    assert opening.trace_id != root.trace_id
    # The stream that the move interrupted, and the one that went on at the target.
    freeze, activate = by_name["engine.freeze"], by_name["engine.activate"]
    source = await span_of(
        collector,
        "stream that points to the freeze",
        lambda one: one.name == "engine.play" and (root.trace_id, freeze.span_id) in one.linked(),
    )
    assert source.instance == "node-1-cpu"
    assert (source.trace_id, source.span_id) in freeze.linked()
    assert source.event("frozen")["move_id"] == move_id
    target = await span_of(
        collector,
        "stream that points to the activation",
        lambda one: one.name == "engine.play" and (root.trace_id, activate.span_id) in one.linked(),
    )
    assert target.instance == "node-2-cpu"


async def test_a_reject_is_in_the_trace_with_all_its_numbers(
    collector: Collector, traced_client: Client
) -> None:
    async with await traced_client.open(
        "tiny", seed=SEED, contract=PATIENT, node="node-1"
    ) as session:
        for target in ("node-2", "node-1"):  # the paths are measured now
            (await session.move(target)).raise_unless_committed()
        record = await session.move("node-2", saves_ms=1e-6)
        assert record.phase is MovePhase.REJECTED
        assert record.verdict is not None
    trace = await whole_trace(collector, record.move_id, {("admission.admit", "admission")})
    root = root_of(trace, record.move_id)
    assert root is not None
    assert root.failed
    assert root.attributes["reason"] == record.verdict.reason.name  # type: ignore[union-attr]
    # The last of them, should it have been asked twice.
    asked = max(
        (each for each in trace if each.name == "admission.admit"),
        key=lambda each: each.raw.start_time_unix_nano,
    )
    for told in (root.event("rejected"), asked.event("rejected")):
        assert told["reason"] == "SAVES_TOO_LITTLE"
        assert told["explanation"] == record.verdict.explanation
        assert told["retry_after_ms"] == record.verdict.retry_after_ms
        assert record.verdict.numbers
        numbers = {name: told[name] for name in record.verdict.numbers}
        assert numbers == pytest.approx(dict(record.verdict.numbers))
    # And in what `worldline trace` shows.
    shown = await traced_client.trace(record.move_id)
    events = [event.name for one in shown.spans if one.name == "move" for event in one.events]
    assert events == ["rejected"]


async def test_the_command_draws_a_move(
    traced_cluster: LocalCluster, traced_client: Client, tmp_path: Path
) -> None:
    async with await traced_client.open(
        "tiny", seed=SEED, contract=PATIENT, node="node-1"
    ) as session:
        record = await session.move("node-2")
        record.raise_unless_committed()
    path = tmp_path / "move.svg"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "worldline.cli.main", "trace", record.move_id, "--svg", str(path)),
        *("--placement", traced_cluster.placement_address),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with bounded(PATIENT_S):
        shown, _ = await process.communicate()
    assert process.returncode == 0
    assert "mover.push" in shown.decode()
    svg = ElementTree.parse(path).getroot()  # noqa: S314 - our own text
    said = {each.text for each in svg.iter("{http://www.w3.org/2000/svg}text")}
    assert {record.move_id, "move", "mover.push", "mover.land", "engine.freeze"} <= said


async def test_metrics_arrive_with_their_names_units_and_nobodys_id(
    collector: Collector, traced_cluster: LocalCluster, traced_client: Client
) -> None:
    """Every metric that an undisturbed move makes, at the collector and at Prometheus."""
    async with await traced_client.open(
        "tiny", seed=SEED, contract=PATIENT, node="node-1"
    ) as session:
        await play(session, 0, 3)
        record = await session.move("node-2")
        record.raise_unless_committed()
        session_id = session.session_id
    told = {each.name: each for each in catalogue.METRICS}
    # Only what goes wrong makes these.
    rare = {
        catalogue.REAPS,
        catalogue.PATH_MISMATCHES,
        catalogue.MISSED_PERIODS,
        catalogue.SKIPPED_RELEASES,
        catalogue.DEGRADED_BLOCKS,
    }
    wanted = {
        (service, each.name)
        for each in catalogue.METRICS
        if each not in rare
        for service in each.services
    }

    async def missing() -> list[str]:
        come = {(who[0], name) for who, found in collector.metrics().items() for name in found}
        return [f"{service}: no {name}" for service, name in sorted(wanted - come)]

    await until(missing, PATIENT_S)
    series = 0
    for who, found in collector.metrics().items():
        for name, metric in found.items():
            assert (metric.unit, metric.description) == (told[name].unit, told[name].description)
            assert who[0] in told[name].services, f"{who[0]} reports {name}"
            values = points_of(metric, told[name].kind)
            series += len(values)
            for attributes in values:
                check_labels(attributes, told[name], (session_id, record.move_id))
    # Two nodes make so many; one session more would make no more.
    assert series < 200

    for service in traced_cluster.services.values():
        text = await asyncio.to_thread(scraped, service.metrics_address)
        assert session_id not in text
        assert record.move_id not in text
        assert not re.search(r"(session|move|probe)-[0-9a-f]{8}", text)
        assert f'service_name="worldline-{service.spec.service}"' in text
        assert "worldline_spans_dropped_total" in text
    text = await asyncio.to_thread(scraped, traced_cluster.services["placement"].metrics_address)
    assert re.search(
        r'worldline_moves_total\{worldline_outcome="committed",worldline_reason="none"\} [1-9]',
        text,
    )


def points_of(metric: Metric, kind: Kind) -> list[dict[str, str]]:
    """The attributes of its figures; they are of the kind that the catalogue says."""
    cumulative = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    if kind is Kind.HISTOGRAM:
        assert metric.histogram.aggregation_temporality == cumulative
        data = metric.histogram.data_points
        assert all(each.count == sum(each.bucket_counts) for each in data)
        return [_labels(each.attributes) for each in data]
    assert metric.sum.aggregation_temporality == cumulative
    assert metric.sum.is_monotonic is (kind is not Kind.OBSERVED_SUM)
    return [_labels(each.attributes) for each in metric.sum.data_points]


def _labels(pairs: object) -> dict[str, str]:
    return {
        f"worldline.{name}" if "." not in name else name: str(value)
        for name, value in plain(pairs).items()
    }


def check_labels(
    attributes: dict[str, str], metric: catalogue.Metric, ids: tuple[str, ...]
) -> None:
    assert set(attributes) == {label.name for label in metric.labels}
    for label in metric.labels:
        value = attributes[label.name]
        assert label.is_open or value in label.values | {OTHER}
        assert value not in ids


def scraped(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENT_S) as answer:
        return str(answer.read().decode())


async def test_services_that_are_stopped_in_the_middle_of_a_move_say_how_it_ended(
    fault: Fault,
) -> None:
    """SIGTERM to the mover that sends and to placement that drives, with a chunk on its way.

    Before it, on the same cluster, a move whose bytes change: the metric names the path.
    """
    node = NodeOptions(
        mover_entry=FAULTY_MOVER,
        env={"WORLDLINE_TEST_FAULT_DIR": str(fault.directory), "PYTHONPATH": str(ROOT)},
    )
    with Collector() as collector:
        async with LocalCluster(options(collector.address, node)) as cluster:
            async with Client(cluster.placement_address) as client:
                session = await client.open("tiny", seed=SEED, contract=PATIENT, node="node-1")
                (await session.move("node-2")).raise_unless_committed()
                (await session.move("node-1")).raise_unless_committed()
                fault.arm("flip")
                assert (await session.move("node-2")).phase is MovePhase.ABORTED
                await until(lambda: unnamed_path(collector), PATIENT_S)
                fault.arm("hold")
                async with bounded(PATIENT_S * 4):
                    moving = asyncio.create_task(session.move("node-2"))
                    await fault.held()
                    record = (await client.moves(session.session_id))[0]
                    stopped = [cluster.services["mover-node-1"], cluster.services["placement"]]
                    for each in stopped:
                        each.signal(signal.SIGTERM)
                    assert [await each.wait() for each in stopped] == [0, 0]
                    moving.cancel()
                    await asyncio.gather(moving, return_exceptions=True)
            trace = await whole_trace(collector, record.move_id, {("mover.push", "node-1")})
    root = root_of(trace, record.move_id)
    assert root is not None
    assert root.failed
    assert root.attributes["outcome"] in ("aborted", "left_open")
    (push,) = [each for each in trace if each.name == "mover.push"]
    assert push.failed
    assert push.raw.status.message


async def unnamed_path(collector: Collector) -> list[str]:
    found = collector.metrics().get(("mover", "node-2"), {})
    metric = found.get(catalogue.PATH_MISMATCHES.name)
    if metric is None:
        return ["no path has differed"]
    (point,) = metric.sum.data_points
    assert _labels(point.attributes) == {
        "worldline.source": "node-1",
        "worldline.target": "node-2",
    }
    assert point.as_double == 1 or point.as_int == 1
    return []


async def test_a_black_hole_keeps_no_service_from_moving_or_from_ending() -> None:
    """Fault 39. What it costs in time is measured in `bench/`; here: it works, and it ends."""
    with BlackHole() as hole:
        cluster = LocalCluster(
            ClusterOptions(
                slots=SLOTS,
                slot_bytes=16 << 20,
                env={"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{hole.address}"},
            )
        )
        async with cluster:
            async with Client(cluster.placement_address) as client:
                session = await client.open("tiny", seed=SEED, contract=PATIENT, node="node-1")
                for target in ("node-2", "node-1"):
                    (await session.move(target)).raise_unless_committed()
            for each in cluster.services.values():
                each.signal(signal.SIGTERM)
            async with bounded(PATIENT_S):
                statuses = [await each.wait() for each in cluster.services.values()]
            assert statuses == [0] * len(statuses)
            # Each had something to send, gave up, and says how much was lost.
            for each in cluster.services.values():
                assert re.search("spans.dropped.*collector", each.log_path.read_text()), each.name
