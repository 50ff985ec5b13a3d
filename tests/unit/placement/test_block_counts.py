"""Block counts: what engines say of how blocks were served, added up per session and engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.placement import block_counts
from services.placement.block_counts import BlockCountBook, BlockCounts
from tests.unit.placement.cluster import Cluster, running_cluster
from worldline.v1 import placement_pb2


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as one:
        yield one


def told(session_id: str, epoch: int, *counts: int) -> Any:
    message = BlockCounts(*counts).to_proto()
    return placement_pb2.RenewEngineRequest.RunningWorld(
        session_id=session_id, epoch=epoch, block_counts=message
    )


def test_a_session_is_counted_over_all_its_stays() -> None:
    book = BlockCountBook()
    assert book.of_session("s") is None
    book.note("e1", [told("s", 1, 4, 2, 1, 0)])
    book.note("e1", [told("s", 1, 6, 3, 1, 1)])
    assert book.of_session("s") == (6, 3, 1, 1)
    book.note("e2", [told("s", 2, 1, 1, 0, 0)])
    # Whom it has left still has it, and says so once more.
    book.note("e1", [told("s", 1, 6, 3, 1, 1)])
    book.note("e2", [told("s", 2, 5, 1, 0, 2)])
    assert book.of_session("s") == (11, 4, 1, 3)
    assert book.of_engine("e1") == (6, 3, 1, 1)
    assert book.of_engine("e2") == (5, 1, 0, 2)
    assert book.of_engine("e3") == (0, 0, 0, 0)


def test_counts_that_begin_anew_are_news() -> None:
    book = BlockCountBook()
    book.note("e1", [told("s", 1, 6, 3, 1, 1)])
    book.note("e1", [told("s", 1, 2, 1, 0, 0)])
    assert book.of_session("s") == book.of_engine("e1") == (8, 4, 1, 1)


def test_an_engine_keeps_what_its_sessions_had_when_they_are_gone() -> None:
    book = BlockCountBook()
    book.note("e1", [told("s", 1, 6, 3, 1, 1), told("t", 1, 1, 0, 0, 0)])
    book.note("e1", [told("t", 1, 2, 0, 0, 1)])
    assert book.of_engine("e1") == (8, 3, 1, 2)
    assert book.of_session("s") == (6, 3, 1, 1), "suspended, or on its way: not forgotten"


def test_who_was_not_told_of_for_longest_is_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(block_counts, "SESSIONS_MAX", 2)
    book = BlockCountBook()
    for name in ("a", "b", "a", "c"):
        book.note("e1", [told(name, 1, 5, 0, 0, 0)])
    assert book.of_session("b") is None
    assert book.of_session("a") == (5, 0, 0, 0)
    assert book.of_engine("e1").blocks == 15


@given(
    stays=st.lists(
        st.tuples(
            st.sampled_from(["e1", "e2", "e3"]),
            st.lists(st.tuples(*[st.integers(0, 9)] * 4), min_size=1, max_size=5),
        ),
        max_size=8,
    )
)
def test_nothing_is_counted_twice_and_nothing_left_out(
    stays: list[tuple[str, list[tuple[int, int, int, int]]]],
) -> None:
    book, by_engine = BlockCountBook(), Counter[str]()
    total = BlockCounts()
    for epoch, (engine_id, growths) in enumerate(stays, 1):
        here = BlockCounts()
        for growth in growths:
            here = here.plus(BlockCounts(*growth))
            book.note(engine_id, [told("s", epoch, *here)])
            book.note(engine_id, [told("s", epoch, *here)])
        total = total.plus(here)
        by_engine[engine_id] += here.degraded_blocks
    assert (book.of_session("s") or BlockCounts()) == total
    for engine_id in ("e1", "e2", "e3"):
        assert book.of_engine(engine_id).degraded_blocks == by_engine[engine_id]


async def test_sessions_and_engines_are_listed_with_them(cluster: Cluster) -> None:
    session_id = await cluster.session()
    listed = await cluster.ask("ListSessions", placement_pb2.ListSessionsRequest())
    assert not listed.sessions[0].HasField("block_counts")
    running = [told(session_id, 1, 9, 4, 2, 1)]
    request = placement_pb2.RenewEngineRequest(engine_id="e1", incarnation="i1", running=running)
    await cluster.ask("RenewEngine", request)
    expected = BlockCounts(9, 4, 2, 1).to_proto()
    assert (await cluster.resolve(session_id)).block_counts == expected
    nodes = (await cluster.ask("ListNodes", placement_pb2.ListNodesRequest())).nodes
    assert [one.engines[0].block_counts for one in nodes] == [expected, BlockCounts().to_proto()]
