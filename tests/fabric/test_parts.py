"""Parts: what the experiments count with and by, without any network."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

import pytest

from tests.fabric.caps import overlaps
from tests.fabric.cell import ShapedCell
from tests.fabric.desk import ASKED, ENDED
from tests.fabric.namespaces import Fabric, Node, Port
from tests.fabric.offers import offers_of
from tests.fabric.order import Experiment, IncastOrder, OpenOrder, Order, SweepOrder
from tests.fabric.probing import SMALL_BYTES, matchings
from tests.fabric.replayed import replay
from tests.fabric.starvation import starved_s, starved_since_s

NODES = ("a", "b", "c", "d")


def held(move_id: str, path: str, begun_s: float, end_s: float) -> dict[str, Any]:
    """A move from `path[0]` to `path[1]` that held its wires in that time."""
    total_ms = (end_s - begun_s) * 1e3
    times = {"granted_s": begun_s, "went_s": begun_s, "total_ms": total_ms, "starved_ms": 0.0}
    ends = {"source": path[0], "target": path[1], "verified_s": end_s}
    return {"move_id": move_id, **ends, **times}


@pytest.mark.parametrize(
    ("path", "how"),
    [("cb", "into b"), ("ac", "out of a"), ("ba", "between a and b, both ways"), ("cd", None)],
)
def test_two_that_hold_at_once_what_one_may_are_found(path: str, how: str | None) -> None:
    first = held("first", "ab", 0.0, 2.0)
    found = overlaps([first, held("second", path, 1.0, 3.0)])
    assert found == ([] if how is None else [f"first and second {how}"])
    assert overlaps([first, held("second", path, 2.0, 3.0)]) == []


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_probes_at_once_share_no_end_and_cover_every_path_once(count: int) -> None:
    names = [f"n{number}" for number in range(count)]
    groups = matchings(names)
    for group in groups:
        sources, targets = [source for source, _ in group], [target for _, target in group]
        assert len(set(sources)) == len(sources)
        assert len(set(targets)) == len(targets)
        assert not {pair[::-1] for pair in group} & set(group)
    paths = [pair for group in groups for pair in group]
    assert len(paths) == len(set(paths)) == count * (count - 1)


def test_offers_come_in_pace_and_from_every_node_as_often() -> None:
    offers = offers_of(NODES, 72, 2.0, 8.0, seed=3)
    assert Counter(offer.source for offer in offers) == dict.fromkeys(NODES, 18)
    for number, offer in enumerate(offers):
        assert number / 16 <= offer.offered_s <= (number + 0.1) / 16
        assert {offer.source, *offer.targets} == set(NODES)
        assert len(offer.targets) == 3
    assert offers == offers_of(NODES, 72, 2.0, 8.0, seed=3)
    assert offers != offers_of(NODES, 72, 2.0, 8.0, seed=4)


@pytest.mark.parametrize(
    "experiment",
    [IncastOrder((1, 3), 2), SweepOrder((1.0,), 8, 5), OpenOrder((1.0, 2.0), 8, 5, 0.5)],
)
def test_an_order_crosses_into_the_driver_as_it_was(experiment: Experiment) -> None:
    node = Node("namespace", "10.78.0.2", "10.77.0.2")
    fabric = Fabric({"a": node}, Node("driver", "10.78.0.1", ""), Port(100, 2, 3, 4, 5))
    order = Order(ShapedCell(), fabric, experiment)
    assert Order.from_json(json.loads(json.dumps(order.to_json()))) == order


def log_of(*second: tuple[str, str]) -> dict[str, Any]:
    """Both paths into `b` measured; then two moves ask at once, with these verdicts."""
    log: list[dict[str, Any]] = []
    for number in range(16):
        source, size_bytes = "ac"[number % 2], (SMALL_BYTES, 5_000_000)[number // 2 % 2]
        asked = {"what": ASKED, "purpose": 2, "verdict": "admitted", "target": "b"}
        move = {"move_id": f"probe-{number}", "size_bytes": size_bytes, "at_s": float(number)}
        log.append({**move, **asked, "source": source, "targets": ["b"]})
        took = {"transfer_ms": size_bytes / 12_500.0, "frozen_ms": 0.0}
        log.append({**move, "what": ENDED, "at_s": number + 0.5, **took})
    for number, (verdict, target) in enumerate(second):
        move = {"move_id": f"move-{number}", "size_bytes": 5_000_000, "at_s": 20.0 + number / 100}
        asked = {"what": ASKED, "purpose": 1, "verdict": verdict, "target": target}
        log.append({**move, **asked, "source": "ac"[number % 2], "targets": ["b"]})
    return {"horizon_ms": 800.0, "log": log}


def test_a_replay_finds_what_was_said_otherwise_and_goes_on_from_what_happened() -> None:
    truth = log_of(("admitted", "b"), ("RECEIVER_BUSY", "b"))
    assert replay(truth).differing == ()
    # Somebody who was refused at first: the next one finds the receiver idle.
    first = replay(log_of(("RECEIVER_BUSY", "b"), ("admitted", "b")))
    assert [(each.move_id, each.real, each.pure) for each in first.differing] == [
        ("move-0", "RECEIVER_BUSY", "admitted to b")
    ]
    # And somebody who got in twice: the pure core would not have let the second.
    second = replay(log_of(("admitted", "b"), ("admitted", "b")))
    assert [(each.move_id, each.pure) for each in second.differing] == [("move-1", "RECEIVER_BUSY")]
    assert second.agreement == pytest.approx(17 / 18)


def test_a_process_that_is_gone_has_not_waited_and_the_one_that_waited_longest_counts() -> None:
    nobody, nobody_else = 2**22 + 1, 2**22 + 2  # above the largest process id that Linux gives
    assert starved_s([nobody]) == {nobody: 0.0}
    assert starved_since_s({nobody: -2.0, nobody_else: -5.0}) == 5.0
    assert starved_since_s(starved_s([os.getpid()])) >= 0.0
