"""Addresses: what can be listened on and told to others, with real sockets of both families."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st

from worldline.errors import InvalidInput, Unavailable
from worldline.hostport import HostPort, check_advertised, dialled, listened
from worldline.rpc.host import ServiceSettings, load_settings
from worldline.rpc.server import GrpcServer


def _no_ipv6() -> str | None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        return f"no IPv6 loopback here: {error}"
    return None


needs_ipv6 = pytest.mark.skipif(_no_ipv6() is not None, reason=_no_ipv6() or "")
ANY_HOSTS = ("0.0.0.0", "::", "0:0:0:0:0:0:0:0", "::ffff:0.0.0.0")  # noqa: S104 - not bound
HOSTS = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.from_regex(r"[a-z][a-z0-9-]{0,20}[a-z](\.[a-z]{2,5})?", fullmatch=True),
)


@given(HOSTS, st.integers(0, 65_535))
def test_what_is_written_is_read_again(host: str, port: int) -> None:
    address = HostPort(host, port)
    assert listened(str(address)) == address


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = listened(text)
    except InvalidInput:
        return
    assert 0 <= address.port <= 65_535
    assert address.host


@pytest.mark.parametrize(
    "text",
    [
        "", ":7400", "7400", "node-1", "node-1:", "node-1:x", "node-1:65536", "node-1:-1",
        "::1:7400", ":::7400", "[]:7400", "[node-1]:7400", "[127.0.0.1]:7400", "[::1]", "[::1",
        "10.0.0:7400", "256.1.1.1:7400", "node 1:7400", "-:7400", "http://node-1:7400",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidInput, match="IPv6 address in brackets") as caught:
        listened(text)
    assert caught.value.field == "listen"


@pytest.mark.parametrize("host", ANY_HOSTS)
def test_an_any_address_is_listened_on_and_never_told(host: str) -> None:
    listen = str(HostPort(host, 7400))
    assert listened(listen).is_any
    with pytest.raises(InvalidInput) as caught:
        check_advertised(listen, "")
    assert caught.value.field == "advertise"
    with pytest.raises(InvalidInput) as caught:
        check_advertised("127.0.0.1:7400", listen)
    assert caught.value.field == "advertise"
    check_advertised(listen, "node-1:7400")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "node_1.local", "10.0.0.7", "fd00::7"])
def test_one_hosts_address_can_be_told(host: str) -> None:
    address = HostPort(host, 7400)
    assert dialled(str(address), "advertise") == address
    check_advertised(str(address), "")


def test_port_0_is_never_told() -> None:
    with pytest.raises(InvalidInput, match="a port of 1 to 65535"):
        check_advertised("127.0.0.1:0", "node-1:0")


@contextlib.asynccontextmanager
async def _serving(listen: str) -> AsyncIterator[GrpcServer]:
    server = GrpcServer()
    server.bind(listen)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


async def _answers(address: str) -> bool:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest()
        response = await stub.Check(request, timeout=60, wait_for_ready=True)
    return response.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    ("listen", "dialled_hosts"),
    [
        ("127.0.0.1:0", ["127.0.0.1"]),
        ("0.0.0.0:0", ["127.0.0.1"]),
        ("localhost:0", ["localhost", "127.0.0.1"]),
        pytest.param("[::1]:0", ["[::1]"], marks=needs_ipv6),
        pytest.param("[::]:0", ["[::1]", "127.0.0.1"], marks=needs_ipv6),
    ],
)
async def test_each_family_is_served_and_dialled(listen: str, dialled_hosts: list[str]) -> None:
    async with _serving(listen) as server:
        host, _, port = server.address.rpartition(":")
        assert host == listen.rpartition(":")[0]
        assert int(port) > 0
        for each in dialled_hosts:
            assert await _answers(f"{each}:{port}")


@needs_ipv6
async def test_a_taken_port_is_named_in_either_family() -> None:
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=str(port)) as caught:
            GrpcServer().bind(f"[::1]:{port}")
    assert caught.value.field == "listen"


def test_a_service_that_nobody_could_dial_does_not_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["worldline-test"])
    monkeypatch.setenv("WORLDLINE_LISTEN", "[::]:7402")
    with pytest.raises(SystemExit) as caught:
        load_settings(ServiceSettings)
    assert caught.value.code == 2
    assert "WORLDLINE_ADVERTISE" in capsys.readouterr().err
    monkeypatch.setenv("WORLDLINE_ADVERTISE", "[fd00::7]:7402")
    assert load_settings(ServiceSettings).advertise == "[fd00::7]:7402"
