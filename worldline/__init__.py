"""Worldline: moves live interactive world-model sessions between nodes, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worldline.contract import Contract
    from worldline.sdk import Action, Block, Client, MoveRecord, Rejected, Session

__all__ = ["Action", "Block", "Client", "Contract", "MoveRecord", "Rejected", "Session"]


def __getattr__(name: str) -> Any:
    """Load the SDK on first use: services import this package and need none of it."""
    if name not in __all__:
        raise AttributeError(f"module 'worldline' has no attribute {name!r}")
    if name == "Contract":
        from worldline.contract import Contract

        return Contract
    from worldline import sdk

    return getattr(sdk, name)
