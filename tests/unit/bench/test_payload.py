"""Payload: the state's shape, random bytes, and that stale bytes cannot pass for landed ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from bench.payload import (
    Payload,
    digest,
    digest_from,
    fair_pages,
    fill,
    layout_of,
    leaf_views,
    spoil,
)
from services.mover.memory.pages import HugePages
from worldline.state.digest import digest_slot


@pytest.fixture
def payload() -> Iterator[Payload]:
    made = Payload("small", 3)
    yield made
    made.close()


def test_the_full_payload_is_the_paper_s_state() -> None:
    layout = layout_of("mg2")
    assert len(layout.tensors) == 420
    assert sum(leaf.size_bytes for leaf in layout.tensors) == 1_670_124_960


def test_the_language_model_s_cache_has_its_shape() -> None:
    layout = layout_of("qwen")
    assert len(layout.tensors) == 48
    assert {leaf.shape for leaf in layout.tensors} == {(1, 2, 1_024, 64)}
    assert layout.extent_bytes == 48 * 2 * 1_024 * 64 * 2


def test_bytes_are_random_and_follow_from_the_seed() -> None:
    one, same, other = (bytearray(1 << 20) for _ in range(3))
    for buffer, seed in ((one, 1), (same, 1), (other, 2)):
        fill(memoryview(buffer), seed)
    assert one == same
    assert one != other
    counts = np.bincount(np.frombuffer(one, np.uint8), minlength=256)
    assert counts.min() > 3_500  # 4,096 of each value are expected


def test_every_page_must_be_written_anew(payload: Payload) -> None:
    landed = bytearray(payload.layout.extent_bytes)
    buffer = torch.frombuffer(landed, dtype=torch.uint8)
    payload.copy_to(buffer)
    assert digest(leaf_views(payload.layout, memoryview(landed))) == payload.digest
    assert digest_from(payload.layout, digest_slot(payload.layout, memoryview(landed))) == (
        payload.digest
    )
    before = bytes(landed)
    spoil(buffer)
    changed = [
        landed[at : at + 4096] != before[at : at + 4096] for at in range(0, len(landed), 4096)
    ]
    assert all(changed)
    assert digest(leaf_views(payload.layout, memoryview(landed))) != payload.digest


@pytest.mark.parametrize(
    ("free_bytes", "pages"),
    [(0, HugePages.AUTO), (6 << 30, HugePages.NEVER), (7 << 30, HugePages.AUTO)],
)
def test_large_pages_are_for_everybody_or_nobody(free_bytes: int, pages: HugePages) -> None:
    assert fair_pages(1_670_124_960, free_bytes) is pages


def test_both_ends_are_what_workers_map(payload: Payload) -> None:
    source = payload.shared("source").map()
    target = payload.shared("target").map()
    try:
        assert digest(leaf_views(payload.layout, memoryview(source))) == payload.digest
        assert digest(leaf_views(payload.layout, memoryview(target))) != payload.digest
    finally:
        source.close()
        target.close()
