"""Shortlist: after any changes it holds, and chooses, what a look at everything would."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, NoReturn

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.placement.changes import Changes
from services.placement.choose import TARGETS_MAX, Candidate, MoveWish, choose_targets
from services.placement.device import DeviceRecord, Place, place_of
from services.placement.fleet import Fleet
from services.placement.move import Move
from services.placement.phases import MovePhase
from services.placement.records import EngineRecord, NodeRecord, SessionRecord, SessionState
from services.placement.shortlist import Shortlist
from services.placement.values import Party, SlotName
from tests.rows import row
from tests.unit.placement.makers import EQUAL, OTHER_TORCH, OTHER_WEIGHTS, contract, entry, session
from worldline.contract import DeterminismTier
from worldline.verdict import Verdict

LEASE_MS = 1_000
NODES = [f"n{number:02}" for number in range(2 * TARGETS_MAX)]
DEVICES = ("cuda:0", "cuda:1")
ENGINES = [f"{node_id}-e{number}" for node_id in NODES for number in range(len(DEVICES))]
FINGERPRINTS = (EQUAL, OTHER_TORCH, OTHER_WEIGHTS)
STATES = tuple(SessionState)

some_node = st.sampled_from(NODES)
some_engine = st.sampled_from(ENGINES)


def uuid_of(engine_id: str) -> str:
    node_id, _, number = engine_id.partition("-e")
    return f"GPU-{node_id}-{number}"


def node_of(engine_id: str) -> str:
    return engine_id.partition("-")[0]


PRESETS = ("tiny", "small")


class Shortlisted(RuleBasedStateMachine):
    """A fleet of two GPUs a node, whatever happens to it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.fleet = Fleet(node_lease_ms=LEASE_MS, engine_lease_ms=LEASE_MS)
        self.shortlist = Shortlist(self.fleet)
        self.sessions: dict[str, SessionRecord] = {}
        self.moves: dict[str, Move] = {}

    # --- the fleet ---

    @rule(slots=st.integers(1, 3), large=st.integers(0, 5), hosts=st.integers(1, 9))
    def register_all(self, slots: int, large: int, hosts: int) -> None:
        for number, node_id in enumerate(NODES):
            size = 200 if number % 6 < large else 100
            self._register(node_id, slots, size, f"h{number % hosts}", ())
        for number, engine_id in enumerate(ENGINES):
            kind = FINGERPRINTS[0 if number % 5 else number % len(FINGERPRINTS)]
            self._register_engine(engine_id, node_of(engine_id), kind, int(engine_id[-1]))

    @rule(
        node_id=some_node,
        slots=st.integers(1, 3),
        size=st.sampled_from([100, 200]),
        host=st.integers(0, 9),
        peers=st.lists(some_engine, max_size=4, unique=True),
        gpus=st.integers(1, len(DEVICES)),
    )
    def register(
        self, node_id: str, slots: int, size: int, host: int, peers: list[str], gpus: int
    ) -> None:
        names = tuple(uuid_of(one) for one in peers if node_of(one) != node_id)
        self._register(node_id, slots, size, f"h{host}", names, gpus)

    def _register(
        self,
        node_id: str,
        slots: int,
        size: int,
        host_id: str,
        peers: tuple[str, ...],
        gpus: int = len(DEVICES),
    ) -> None:
        devices = tuple(
            DeviceRecord(
                name,
                slots,
                size,
                f"GPU-{node_id}-{number}",
                nvlink_peers=peers[::2],
                pcie_peers=peers[1::2],
            )
            for number, name in enumerate(DEVICES[:gpus])
        )
        self.fleet.put_node(NodeRecord(node_id, "h:1", "j", host_id, devices), self.now)

    @precondition(lambda self: self.fleet.nodes)
    @rule(engine_id=some_engine, data=st.data(), kind=st.sampled_from(FINGERPRINTS))
    def register_engine(self, engine_id: str, data: st.DataObject, kind: object) -> None:
        node_id = data.draw(st.sampled_from(sorted(self.fleet.nodes)))
        number = data.draw(st.integers(0, len(DEVICES) - 1))
        self._register_engine(engine_id, node_id, kind, number)

    def _register_engine(self, engine_id: str, node_id: str, kind: object, number: int) -> None:
        self.fleet.put_engine(
            EngineRecord(
                engine_id,
                node_id,
                "h:2",
                DEVICES[number],
                kind,  # type: ignore[arg-type]
                "i",
                device_uuid=f"GPU-{node_id}-{number}",
            ),
            self.now,
        )

    @rule(data=st.data(), foreign=st.integers(0, 2), device=st.sampled_from(DEVICES))
    def renew(self, data: st.DataObject, foreign: int, device: str) -> None:
        for node_id in sorted(self.fleet.nodes):
            if data.draw(st.booleans()):
                self.fleet.renew_node(node_id, "j", Counter({device: foreign}), self.now)
        for engine_id in sorted(self.fleet.engines):
            if data.draw(st.booleans()):
                rows = [row("tiny", 5.0 * foreign)] if foreign else []
                self.fleet.renew_engine(engine_id, "i", rows, self.now)

    @precondition(lambda self: self.fleet.engines)
    @rule(data=st.data(), differs=st.sampled_from(["", "block 0"]), preset=st.sampled_from(PRESETS))
    def check_itself(self, data: st.DataObject, differs: str, preset: str) -> None:
        engine_id = data.draw(st.sampled_from(sorted(self.fleet.engines)))
        self.fleet.note_self_checks(engine_id, "i", {preset: differs})

    @rule(elapsed_s=st.sampled_from([0.1, 0.6, 1.0]))
    def wait(self, elapsed_s: float) -> None:
        self.now += elapsed_s

    # --- the directory ---

    @precondition(lambda self: self.fleet.engines)
    @rule(name=st.integers(0, 40), data=st.data(), paced=st.booleans())
    def put_session(self, name: int, data: st.DataObject, paced: bool) -> None:
        owner = data.draw(st.sampled_from(sorted(self.fleet.engines)))
        node_id = self.fleet.engines[owner].node_id
        state = data.draw(st.sampled_from(STATES))
        one = session(
            session_id=f"s{name}",
            owner=owner,
            node_id=node_id,
            state=state,
            slot=data.draw(st.sampled_from([None, SlotName(node_id, 0, 1)])),
            contract=contract(period_ms=100.0 if paced else 0.0),
        )
        self.sessions[one.session_id] = one
        self.shortlist.follow(Changes(1, sessions=(one,)))

    @precondition(lambda self: self.fleet.engines)
    @rule(name=st.integers(0, 20), data=st.data(), phase=st.sampled_from(list(MovePhase)))
    def put_move(self, name: int, data: st.DataObject, phase: MovePhase) -> None:
        ends = st.sampled_from(sorted(self.fleet.engines))
        source, target = (self._party(data.draw(ends)) for _ in range(2))
        move = entry(f"m{name}", f"s{name}", source=source, target=target, phase=phase).move
        self._put_move(move)

    @precondition(lambda self: self.moves)
    @rule(data=st.data())
    def end_move(self, data: st.DataObject) -> None:
        move = self.moves[data.draw(st.sampled_from(sorted(self.moves)))]
        self._put_move(
            replace(move, phase=data.draw(st.sampled_from([MovePhase.DONE, MovePhase.ABORTED])))
        )

    def _put_move(self, move: Move) -> None:
        self.moves.pop(move.move_id, None)
        if not move.phase.terminal:
            self.moves[move.move_id] = move
        self.shortlist.follow(Changes(1, moves=(move,)))

    def _party(self, engine_id: str) -> Party:
        return Party(engine_id, "i", self.fleet.engines[engine_id].node_id, "j")

    # --- what holds ---

    def _fresh(self) -> tuple[object, ...]:
        present = tuple(
            one for one in self.sessions.values() if one.state is not SessionState.CLOSED
        )
        return self.fleet.candidates(present, tuple(self.moves.values()), self.now)

    @invariant()
    def it_is_what_is_counted_from_scratch(self) -> None:
        assert self.shortlist.candidates(self.now) == self._fresh()

    @precondition(lambda self: self.fleet.engines)
    @rule(
        data=st.data(),
        tier=st.sampled_from(DeterminismTier),
        drop=st.booleans(),
        extent_bytes=st.sampled_from([100, 150, 201]),
        named=st.booleans(),
    )
    def choose(
        self,
        data: st.DataObject,
        tier: DeterminismTier,
        drop: bool,
        extent_bytes: int,
        named: bool,
    ) -> None:
        source = data.draw(st.sampled_from(sorted(self.fleet.engines)))
        engine = self.fleet.engines[source]
        node = self.fleet.nodes[engine.node_id]
        # A source whose node came back without its device has no place of its own any more.
        device = engine.device_of(node) or DeviceRecord("gone", 1, 1)
        allowed = drop and tier is DeterminismTier.T0_BITWISE
        wish = MoveWish(
            source_node_id=engine.node_id,
            source=place_of(node.host_id, device),
            fingerprint=engine.fingerprint,
            contract=contract(determinism_tier=tier, tier_drop_allowed=allowed),
            extent_bytes=extent_bytes,
            node_id=data.draw(some_node) if named else "",
            preset=data.draw(st.sampled_from(PRESETS)),
        )
        # Not `candidates` first: leases that ran out since are the choice's own to notice.
        chosen = self.shortlist.choose(wish, self.now)
        assert chosen == choose_targets(self._fresh(), wish)  # type: ignore[arg-type]


TestShortlisted = Shortlisted.TestCase
TestShortlisted.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_an_engine_that_comes_back_elsewhere_takes_its_sessions_along() -> None:
    """To another device: whoever shared the old one has a slot more, and the other way round."""
    machine = Shortlisted()
    machine.register_all(3, 3, 9)
    owner, beside = ENGINES[0], ENGINES[1]
    one = session(owner=owner, node_id=NODES[0])
    machine.sessions[one.session_id] = one
    machine.shortlist.follow(Changes(1, sessions=(one,)))
    machine.it_is_what_is_counted_from_scratch()
    machine._register_engine(owner, NODES[1], EQUAL, 1)
    machine.it_is_what_is_counted_from_scratch()
    free = {one.engine_id: one.slots_free for one in machine.shortlist.candidates(0.0)}
    assert free[beside] == 2


@pytest.fixture
def machine() -> Shortlisted:
    machine = Shortlisted()
    machine.register_all(3, 3, 9)
    return machine


def nodes_chosen(machine: Shortlisted, source: str) -> list[str]:
    wish = MoveWish(
        source_node_id=node_of(source),
        source=Place("elsewhere"),
        fingerprint=EQUAL,
        contract=contract(),
        extent_bytes=100,
    )
    chosen = machine.shortlist.choose(wish, machine.now)
    assert not isinstance(chosen, Verdict)
    return [node_of(one.engine_id) for one in chosen]


def test_sources_spread_over_receivers(machine: Shortlisted) -> None:
    """Every node is somebody's, and none is everybody's."""
    wanted = Counter(one for node_id in NODES for one in nodes_chosen(machine, f"{node_id}-e0"))
    assert set(wanted) == set(NODES)
    assert max(wanted.values()) <= TARGETS_MAX + 1


@pytest.mark.parametrize("nodes", [2, TARGETS_MAX // len(DEVICES), TARGETS_MAX + 1])
def test_of_receivers_that_are_equally_near_those_with_most_room_come_first(nodes: int) -> None:
    """Where all of them are asked about, and where some are not."""
    machine = Shortlisted()
    for number, node_id in enumerate(NODES[:nodes]):
        machine._register(node_id, 1 + number % 3, 100, f"h-{node_id}", ())
        for device in range(len(DEVICES)):
            machine._register_engine(f"{node_id}-e{device}", node_id, EQUAL, device)
    wish = MoveWish("source", Place("elsewhere"), EQUAL, contract(), extent_bytes=100)
    chosen = machine.shortlist.choose(wish, machine.now)
    assert not isinstance(chosen, Verdict)
    room = {one.engine_id: one.slots_free for one in machine.shortlist.candidates(machine.now)}
    assert [room[one.engine_id] for one in chosen] == sorted(
        (room[one.engine_id] for one in chosen), reverse=True
    )
    assert chosen == choose_targets(machine.shortlist.candidates(machine.now), wish)
    targets = machine.shortlist.targets(wish, machine.now)
    assert not isinstance(targets, Verdict)
    assert [one.party.engine_id for one in targets] == [one.engine_id for one in chosen]


class Looked(dict[str, Candidate]):
    """Candidates, with the names of those that anybody looked at."""

    def __init__(self, candidates: dict[str, Candidate]) -> None:
        super().__init__(candidates)
        self.names: list[str] = []

    def __getitem__(self, name: str) -> Candidate:
        self.names.append(name)
        return super().__getitem__(name)

    def values(self) -> NoReturn:
        raise AssertionError("a look at everybody")


def test_a_choice_looks_at_few(machine: Shortlisted, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes_chosen(machine, ENGINES[0])
    looked = Looked(machine.shortlist._candidates)
    monkeypatch.setattr(machine.shortlist, "_candidates", looked)
    made: list[str] = []
    candidate = machine.fleet.candidate

    def make(engine_id: str, *args: Any) -> Candidate | None:
        made.append(engine_id)
        return candidate(engine_id, *args)

    monkeypatch.setattr(machine.fleet, "candidate", make)
    nodes_chosen(machine, ENGINES[2])
    assert TARGETS_MAX <= len(looked.names) <= TARGETS_MAX * (len(DEVICES) + 1)
    assert not made
    # One that changes is made anew, with its node and nobody else.
    change = session(owner=ENGINES[4], node_id=NODES[2])
    machine.shortlist.follow(Changes(1, sessions=(change,)))
    nodes_chosen(machine, ENGINES[2])
    assert made == [*ENGINES[4:6]]


def test_the_dead_are_off_the_ring(machine: Shortlisted) -> None:
    nodes_chosen(machine, ENGINES[0])
    machine.now = 0.5
    alive = NODES[3]
    machine.fleet.renew_node(alive, "j", Counter(), machine.now)
    for engine_id in (one for one in ENGINES if node_of(one) == alive):
        machine.fleet.renew_engine(engine_id, "i", (), machine.now)
    machine.now = LEASE_MS / 1e3
    assert set(nodes_chosen(machine, ENGINES[0])) == {alive}
    rings = machine.shortlist._rings
    assert sum(len(ring) for ring in rings.values()) == len(DEVICES)
