"""gRPC ignores an option that it does not know: a misspelt one is a default nobody wanted."""

from __future__ import annotations

from pathlib import Path

import pytest
from grpc._cython import cygrpc

from worldline.rpc.channel import CHANNEL_OPTIONS
from worldline.rpc.server import SERVER_OPTIONS


@pytest.fixture(scope="module")
def core() -> bytes:
    """gRPC's core library, which has the name of every option that it reads."""
    return Path(cygrpc.__file__).read_bytes()


@pytest.mark.parametrize("name", sorted({name for name, _ in (*CHANNEL_OPTIONS, *SERVER_OPTIONS)}))
def test_grpc_knows_every_option(core: bytes, name: str) -> None:
    assert name.encode() + b"\0" in core


def test_a_server_allows_the_pings_of_our_clients() -> None:
    """Else it ends every quiet connection after three of them."""
    asked_every_ms = dict(CHANNEL_OPTIONS)["grpc.keepalive_time_ms"]
    allowed_every_ms = dict(SERVER_OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"]
    assert allowed_every_ms < asked_every_ms
