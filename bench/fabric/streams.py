"""Streams: one random generator per purpose, so that a draw for one never shifts another's."""

from __future__ import annotations

import random


def stream(seed: int, purpose: str) -> random.Random:
    """The generator of a purpose. A string seeds by its digest, the same in every process."""
    return random.Random(f"{seed}/{purpose}")
