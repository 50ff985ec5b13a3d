"""Endpoint: GET /metrics over real sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from worldline.errors import InvalidInput, Unavailable
from worldline.hostport import listened
from worldline.telemetry import Telemetry, catalogue, endpoint, instruments, start

#: Longer than a loaded machine takes for one answer.
_PATIENT_S = 60


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    started = start("test", metrics_listen="127.0.0.1:0", instance="node-1")
    yield started
    started.shutdown()


def parts(address: str) -> tuple[str, int]:
    dialled = listened(address)
    return dialled.host, dialled.port


def ask(address: str, path: str = "/metrics", method: str = "GET") -> tuple[HTTPResponse, str]:
    host, port = parts(address)
    connection = HTTPConnection(host, port, timeout=_PATIENT_S)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response, response.read().decode()
    finally:
        connection.close()


def test_a_scraper_reads_what_was_recorded(telemetry: Telemetry) -> None:
    instruments().move_ended("aborted", "PEER_GONE", frozen_ms=20)
    telemetry.observe(catalogue.SLOTS, lambda: {("free",): 3})
    response, text = ask(telemetry.metrics_address)
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/plain")
    lines = text.splitlines()
    assert (
        'worldline_moves_total{worldline_outcome="aborted",worldline_reason="PEER_GONE"} 1.0'
        in lines
    )
    assert (
        'worldline_move_frozen_duration_seconds_bucket{le="0.025",worldline_outcome="aborted"} 1.0'
        in lines
    )
    assert 'worldline_slot_count{worldline_role="free"} 3.0' in lines
    assert 'service_name="worldline-test"' in text
    assert 'service_instance_id="node-1"' in text


def test_every_scrape_is_of_its_moment(telemetry: Telemetry) -> None:
    for count in (1, 2):
        instruments().reaped("hold")
        _, text = ask(telemetry.metrics_address)
        assert f'worldline_reaps_total{{worldline_reaped="hold"}} {count}.0' in text


def test_other_paths_and_methods_are_told_where_to_go(telemetry: Telemetry) -> None:
    response, text = ask(telemetry.metrics_address, "/")
    assert (response.status, text) == (404, "metrics are at /metrics\n")
    for method in ("POST", "HEAD", "OPTIONS"):
        response, _ = ask(telemetry.metrics_address, method=method)
        assert (response.status, response.headers["Allow"]) == (405, "GET")


def test_it_serves_over_ipv6_too() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 loopback here")
    started = start("test", metrics_listen="[::1]:0")
    try:
        assert started.metrics_address.startswith("[::1]:")
        response, _ = ask(started.metrics_address)
        assert response.status == 200
    finally:
        started.shutdown()


def test_a_taken_port_is_refused_naming_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unavailable) as caught:
            start("test", metrics_listen=address)
        assert address in caught.value.message
        assert caught.value.field == "metrics_listen"
        # Nothing was begun: whatever is recorded goes nowhere, as before.
        instruments().reaped("hold")


def test_after_the_shutdown_the_port_is_given_back() -> None:
    started = start("test", metrics_listen="127.0.0.1:0")
    ask(started.metrics_address)
    bound = started._endpoint
    assert bound is not None
    assert started.shutdown(_PATIENT_S)
    assert bound._server.socket.fileno() == -1
    assert not bound._thread.is_alive()
    bound.close()  # a second one does nothing


def test_a_silent_scraper_keeps_nobody_from_scraping_or_from_ending() -> None:
    started = start("test", metrics_listen="127.0.0.1:0")
    with socket.create_connection(parts(started.metrics_address), timeout=_PATIENT_S):
        response, _ = ask(started.metrics_address)
        assert response.status == 200
        assert started.shutdown(_PATIENT_S)


def test_more_scrapers_than_there_is_room_for_are_hung_up_on() -> None:
    started = start("test", metrics_listen="127.0.0.1:0")
    address = parts(started.metrics_address)
    idle = [socket.create_connection(address, timeout=_PATIENT_S) for _ in range(8)]
    try:
        with socket.create_connection(address, timeout=_PATIENT_S) as ninth:
            assert ninth.recv(1) == b""
    finally:
        for each in idle:
            each.close()
        started.shutdown()


def test_a_request_that_never_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_ANSWERED_S", 0.1)
    monkeypatch.setattr(endpoint._Handler, "timeout", 2 * _PATIENT_S)
    started = start("test", metrics_listen="127.0.0.1:0")
    try:
        with socket.create_connection(parts(started.metrics_address), _PATIENT_S) as dripping:
            dripping.sendall(b"GET /met")
            assert dripping.recv(1) == b""
    finally:
        started.shutdown()


@pytest.mark.parametrize(
    ("variable", "value"),
    [("OTEL_METRIC_EXPORT_INTERVAL", "0"), ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd")],
)
def test_a_collectors_setting_that_is_refused_is_one_error_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(variable, value)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(InvalidInput) as caught:
        start("test", metrics_listen=address)
    assert caught.value.reason == "OTEL_INVALID"
    # The port is free again.
    socket.create_server(parts(address)).close()


def test_it_works_beside_another_reader() -> None:
    reader = InMemoryMetricReader()
    started = start("test", metrics_listen="127.0.0.1:0", metric_readers=[reader])
    instruments().reaped("hold")
    _, text = ask(started.metrics_address)
    assert "worldline_reaps_total" in text
    data = reader.get_metrics_data()
    assert data is not None
    names = [each.name for each in data.resource_metrics[0].scope_metrics[0].metrics]
    assert "worldline.reaps" in names
    started.shutdown()


def test_without_an_address_there_is_no_endpoint() -> None:
    started = start("test")
    assert started.metrics_address == ""
    started.shutdown()


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        start("test", metrics_listen="::1:80")
    assert caught.value.field == "metrics_listen"
