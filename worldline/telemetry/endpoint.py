"""Endpoint: `GET /metrics` for Prometheus, on threads of its own."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterable
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics.export import MetricReader
from prometheus_client import CollectorRegistry, make_wsgi_app

from worldline.errors import Unavailable
from worldline.hostport import HostPort, listened

PATH = "/metrics"
FIELD = "metrics_listen"
#: One scraper needs one; who leaves more of them open is told no.
_CONNECTIONS_MAX = 8
#: A scraper that sends nothing, or does not read, is dropped after this.
_SILENT_S = 5.0
#: And one that does so a byte at a time after this: it would keep its place from others for good.
_ANSWERED_S = 15.0
_STOP_S = 1.0
_POLL_S = 0.05


class MetricsEndpoint:
    """A bound endpoint. It reads its metrics from `reader`, which a meter provider feeds."""

    def __init__(self, listen: str) -> None:
        """Bind and serve.

        Raises:
            InvalidInput: `listen` is not host:port.
            Unavailable: it cannot be bound; the message names it.
        """
        address = listened(listen, FIELD)
        registry = CollectorRegistry()
        # Which code made a figure is no label of it: there is one meter.
        self._reader = PrometheusMetricReader(scope_info_enabled=False, registry=registry)
        self._server = _bound(address)
        self._server.set_app(_MetricsApp(registry))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="metrics", daemon=True
        )
        self._thread.start()

    @property
    def reader(self) -> MetricReader:
        """To be given to the meter provider."""
        return self._reader

    @property
    def address(self) -> str:
        """host:port that a scraper dials, an IPv6 host in brackets."""
        host, port = self._server.server_address[:2]
        return str(HostPort(str(host), int(port)))

    def close(self) -> None:
        """Answer nobody any more and give the port back; idempotent."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(_STOP_S)
        self._server.server_close()


class _MetricsApp:
    """One scrape at a time: collecting twice at once would mix the two."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._app: Any = make_wsgi_app(registry)
        self._lock = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, respond: StartResponse) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != PATH:
            return _say(respond, HTTPStatus.NOT_FOUND, f"metrics are at {PATH}\n")
        if environ.get("REQUEST_METHOD") != "GET":
            return _say(respond, HTTPStatus.METHOD_NOT_ALLOWED, "GET it\n", ("Allow", "GET"))
        with self._lock:
            answer: Iterable[bytes] = self._app(environ, respond)
        return answer


def _say(
    respond: StartResponse, status: HTTPStatus, text: str, *headers: tuple[str, str]
) -> list[bytes]:
    kind = ("Content-Type", "text/plain; charset=utf-8")
    respond(f"{status.value} {status.phrase}", [kind, *headers])
    return [text.encode()]


class _Handler(WSGIRequestHandler):
    timeout = _SILENT_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Scrapes are not news."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    #: A socket that waits out its last connection does not keep a restarted service away.
    allow_reuse_address = True

    def __init__(self, family: socket.AddressFamily, address: tuple[Any, ...]) -> None:
        self.address_family = family
        self._room = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # Not the base's: that one asks a name server what this host is called.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = (
            str(self.server_address[0]),
            int(self.server_address[1]),
        )
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        overdue = threading.Timer(_ANSWERED_S, _cut, (request,))
        overdue.daemon = True
        overdue.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            overdue.cancel()
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that went away in the middle is its own business."""


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended by itself
        connection.shutdown(socket.SHUT_RDWR)


def _bound(listen: HostPort) -> _Server:
    try:
        found = socket.getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = found[0]
        return _Server(family, address)
    except OSError as error:
        raise Unavailable(
            f"cannot serve metrics on {listen}: {error.strerror or error}; choose another with "
            "--metrics-listen or WORLDLINE_<SERVICE>_METRICS_LISTEN, port 0 for a free one",
            reason="METRICS_LISTEN_FAILED",
            field=FIELD,
        ) from error
