"""Chunks cover every byte once; the window holds what it says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.mover.chunking import CHUNKS_MAX, ChunkPlan, Window
from worldline.errors import InvalidInput, InvariantBroken


@given(
    extent=st.integers(0, 10_000),
    granule=st.integers(1, 64),
    granules_per_chunk=st.integers(1, 32),
)
def test_every_byte_is_in_exactly_one_chunk(
    extent: int, granule: int, granules_per_chunk: int
) -> None:
    plan = ChunkPlan(extent, granule * granules_per_chunk, granule)
    end = granules = 0
    for index, chunk in enumerate(plan):
        assert chunk.index == index
        assert chunk.offset_bytes == end
        assert 0 < chunk.size_bytes <= plan.chunk_bytes
        assert chunk.first_granule == granules
        end += chunk.size_bytes
        granules += chunk.granule_count
    assert end == extent
    assert granules == -(-extent // granule)
    assert len(list(plan)) == len(plan)


@pytest.mark.parametrize(("chunk", "granule"), [(10, 3), (2, 3), (0, 1), (3, 0)])
def test_chunks_are_whole_granules(chunk: int, granule: int) -> None:
    with pytest.raises(InvalidInput):
        ChunkPlan(100, chunk, granule)


def test_every_chunk_has_a_tag() -> None:
    ChunkPlan(CHUNKS_MAX, 1, 1)
    with pytest.raises(InvalidInput) as caught:
        ChunkPlan(CHUNKS_MAX + 1, 1, 1)
    assert caught.value.field == "chunk_bytes"


@settings(max_examples=50)
@given(count=st.integers(0, 40), size=st.integers(1, 8), data=st.data())
def test_window_posts_in_order_and_never_too_much(
    count: int, size: int, data: st.DataObject
) -> None:
    window, posted, open_chunks = Window(count, size), [], []
    while True:
        fresh = list(window.to_post())
        posted += fresh
        open_chunks += fresh
        assert window.in_flight == len(open_chunks) <= size
        if not open_chunks:
            break
        index = data.draw(st.sampled_from(open_chunks))
        open_chunks.remove(index)
        window.ended(index)
    assert window.complete
    assert posted == list(range(count))


def test_a_chunk_ends_once_and_after_it_was_posted() -> None:
    window = Window(3, 2)
    window.to_post()
    window.ended(1)
    for index in (1, 2, -1):
        with pytest.raises(InvariantBroken):
            window.ended(index)


@pytest.mark.parametrize("size", [0, -1, 65])
def test_window_is_bounded(size: int) -> None:
    with pytest.raises(InvalidInput):
        Window(3, size)
