"""Rows: measured rows for tests, of the paper's engine unless a test says otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from worldline.admissibility.profile_row import ProfileRow, QuantumSpread, RequestShape
from worldline.numa import Binding


def row(preset: str = "tiny", quantum_ms: float = 93.9, **changes: Any) -> ProfileRow:
    """Four uniform quanta a block: three denoising steps and the context pass (section 2)."""
    spread = QuantumSpread(samples=100, p50_ms=quantum_ms, p95_ms=quantum_ms)
    plain = ProfileRow(
        shape=RequestShape(preset),
        binding=Binding(frozenset({0, 1, 2, 3}), 0),
        device="cuda:0",
        quanta_per_block=4,
        denoising_steps=3,
        step=spread,
        closing=spread,
    )
    return replace(plain, **changes)
