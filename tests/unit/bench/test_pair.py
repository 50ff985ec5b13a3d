"""Pair: two fresh processes, a time on one clock, and an end to every fault."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import bench.pair
from bench.contestant import Failed, Skipped
from bench.pair import Pair
from bench.payload import Payload


@pytest.fixture(scope="module")
def payload() -> Iterator[Payload]:
    made = Payload("tiny", 3)
    yield made
    made.close()


def pair(payload: Payload, fault: str) -> Pair:
    return Pair("it", "tests.unit.bench.sides", payload, options={"fault": fault})


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def test_runs_again_and_again_and_leaves_no_process(payload: Payload) -> None:
    before = children()
    it = pair(payload, "none")
    it.prepare()
    try:
        begun_s = time.monotonic()
        took_s = [it.run() for _ in range(3)]
        elapsed_s = time.monotonic() - begun_s
        workers = children() - before
        assert it._scratch is not None
        scratch = Path(it._scratch.name)
        assert scratch.is_dir()
        assert len(workers) == 2
        # Stopped between turns: whoever is being timed has the processors for itself.
        # A signal takes its time: until each has stopped, which is left to be seen.
        for pid in workers:
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        assert {psutil.Process(pid).status() for pid in workers} == {psutil.STATUS_STOPPED}
    finally:
        it.close()
    assert all(0 < took < elapsed_s for took in took_s)
    assert children() == before
    assert not scratch.exists()


def test_bytes_that_did_not_land_are_not_a_result(payload: Payload) -> None:
    it = pair(payload, "lazy")
    with pytest.raises(Failed, match="not what was sent"):
        it.prepare()
    it.close()


def test_a_process_that_dies_is_reported_with_its_last_words(payload: Payload) -> None:
    it = pair(payload, "dies")
    begun_s = time.monotonic()
    with pytest.raises(Failed, match="status 3: out of cheese"):
        it.prepare()
    it.close()
    assert time.monotonic() - begun_s < 60


def test_a_process_that_hangs_is_given_up(
    payload: Payload, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = children()
    monkeypatch.setattr(bench.pair, "_RUN_S", 1.0)
    it = pair(payload, "hangs")
    with pytest.raises(Failed, match="no answer"):
        it.prepare()
    it.close()
    assert children() == before


def test_who_cannot_run_says_why(payload: Payload) -> None:
    it = pair(payload, "unfit")
    with pytest.raises(Skipped, match="no such library"):
        it.prepare()
    it.close()
    absent = Pair("it", "bench.peers.no_such_peer", payload)
    with pytest.raises(Skipped, match="no_such_peer"):
        absent.prepare()
    absent.close()
