"""Older mover: the real one, as if it were of a release that spoke another protocol."""

from __future__ import annotations

from worldline.rpc import channel

OLDER_VERSION = channel.PROTOCOL_VERSION - 1


def main() -> None:
    """Entry point: before anybody has read which version it is."""
    channel.PROTOCOL_VERSION = OLDER_VERSION
    from services.mover.main import main as serve

    serve()
