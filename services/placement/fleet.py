"""Fleet: nodes and engines with their leases; who is alive, and what each reported last.

Durable facts are the directory's; leases live here, on the caller's monotonic clock. After a
restart everyone registered gets one lease to report.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from services.placement.choose import Candidate
from services.placement.device import DeviceRecord, Place, place_of
from services.placement.move import Move
from services.placement.phases import MovePhase
from services.placement.records import EngineRecord, NodeRecord, SessionRecord, SessionState
from services.placement.values import Party, SlotName
from worldline.admissibility.profile_row import ProfileRow, RequestShape, shape_of
from worldline.contract import Contract
from worldline.errors import Fenced, NotFound

#: A report is about a second old: nobody releases so many slots in one.
RELEASED_MAX = 16_384
#: Sessions that generate nothing.
_IDLE = (SessionState.LOST, SessionState.SUSPENDED)


class _Told(NamedTuple):
    """A row, and when its engine told it: from there it ages here."""

    row: ProfileRow
    told_at: float

    def aged(self, now: float) -> ProfileRow:
        return replace(self.row, age_ms=self.row.age_ms + max(0.0, now - self.told_at) * 1e3)


class Paced(NamedTuple):
    """A session with a period: what it generates, and what it was promised."""

    preset: str
    contract: Contract


class Fleet:
    """Nodes and engines by name. An unknown one is `NotFound`, a replaced one `Fenced`."""

    def __init__(self, *, node_lease_ms: int, engine_lease_ms: int) -> None:
        self.node_lease_ms = node_lease_ms
        self.engine_lease_ms = engine_lease_ms
        self.nodes: dict[str, NodeRecord] = {}
        self.engines: dict[str, EngineRecord] = {}
        #: When each lease runs out.
        self._node_until: dict[str, float] = {}
        self._engine_until: dict[str, float] = {}
        self._foreign: dict[str, Counter[str]] = {}
        #: Of those, the LIVE ones with their devices: they may be released at any moment.
        self._foreign_live: dict[str, dict[SlotName, str]] = {}
        #: What movers took back, lately: no other use of a slot has its name.
        self._released: OrderedDict[SlotName, None] = OrderedDict()
        self._rows: dict[str, dict[RequestShape, _Told]] = {}
        #: By engine and preset: where two runs of it parted there; empty: nowhere.
        self._self_checks: dict[str, dict[str, str]] = {}
        self._engines_on: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._on_change: list[Callable[[str], None]] = []
        self._cordoned: set[str] = set()

    def on_change(self, changed: Callable[[str], None]) -> None:
        """Call this with every node whose engines, devices or slots of others may have changed, and
        with that of a lease that is renewed after it ran out. (Running out makes no sound.)
        """
        self._on_change.append(changed)

    def _changed(self, node_id: str) -> None:
        for changed in self._on_change:
            changed(node_id)

    def cordon(self, node_id: str) -> None:
        """From now on nothing is to go to that node."""
        self._cordoned.add(node_id)
        self._changed(node_id)

    def uncordon(self, node_id: str) -> None:
        """Things may go there again; nothing where they might all along."""
        self._cordoned.discard(node_id)
        self._changed(node_id)

    def cordoned(self, node_id: str) -> bool:
        """Whether nothing is to go there."""
        return node_id in self._cordoned

    def put_node(self, node: NodeRecord, now: float) -> None:
        """Register, or replace by the next incarnation."""
        self.nodes[node.node_id] = node
        self._node_until[node.node_id] = now + self.node_lease_ms / 1e3
        self._foreign[node.node_id] = Counter()
        self._foreign_live[node.node_id] = {}
        self._changed(node.node_id)

    def put_engine(self, engine: EngineRecord, now: float) -> None:
        """Register, or replace by the next incarnation."""
        before = self.engines.get(engine.engine_id)
        if before is not None:
            del self._engines_on[before.node_id][engine.engine_id]
        self.engines[engine.engine_id] = engine
        self._engines_on[engine.node_id][engine.engine_id] = None
        self._engine_until[engine.engine_id] = now + self.engine_lease_ms / 1e3
        # Of the process before: it may have been bound elsewhere.
        self._rows[engine.engine_id] = {}
        self._self_checks[engine.engine_id] = {}
        if before is None or _seat(before) == _seat(engine):
            self._changed(engine.node_id)
            return
        # Rare: its sessions, wherever they are, are on another device from now on.
        for node_id in self.nodes:
            self._changed(node_id)

    def renew_node(
        self,
        node_id: str,
        incarnation: str,
        foreign: Counter[str],
        now: float,
        live: Mapping[SlotName, str] = MappingProxyType({}),
    ) -> None:
        """Extend a node's lease; `foreign` counts slots by device that nobody here knows of, `live`
        are the LIVE ones among them, with their devices.

        Raises:
            NotFound: register first. Fenced: another process has this name now.
        """
        _check(self.node(node_id).incarnation, incarnation, "node", node_id)
        # The report may have been on its way while a slot was released.
        late = [device for slot, device in live.items() if slot in self._released]
        foreign = foreign - Counter(late)
        self._foreign_live[node_id] = {
            slot: device for slot, device in live.items() if slot not in self._released
        }
        changed = foreign != self._foreign[node_id] or not self.node_alive(node_id, now)
        self._node_until[node_id] = now + self.node_lease_ms / 1e3
        self._foreign[node_id] = foreign
        if changed:
            self._changed(node_id)

    def renew_engine(
        self, engine_id: str, incarnation: str, rows: Iterable[ProfileRow], now: float
    ) -> None:
        """Extend an engine's lease; `rows` are all that it believes in now.

        Raises:
            NotFound: register first. Fenced: another process has this name now.
        """
        _check(self.engine(engine_id).incarnation, incarnation, "engine", engine_id)
        changed = not self.engine_alive(engine_id, now)
        self._engine_until[engine_id] = now + self.engine_lease_ms / 1e3
        self._rows[engine_id] = {row.shape: _Told(row, now) for row in rows}
        if changed:
            self._changed(self.engines[engine_id].node_id)

    def note_self_checks(
        self, engine_id: str, incarnation: str, self_checks: Mapping[str, str]
    ) -> None:
        """By preset, where two runs of it parted on that engine; empty: nowhere.

        Of a process that has this engine's name no longer nothing is noted.
        """
        known = self.engines.get(engine_id)
        if known is None or known.incarnation != incarnation:
            return
        before = self.differing(engine_id)
        self._self_checks[engine_id].update(self_checks)
        if self.differing(engine_id) != before:
            self._changed(known.node_id)

    def self_checks(self, engine_id: str) -> Mapping[str, str]:
        """As `note_self_checks` was told, of the engine's present process."""
        return self._self_checks.get(engine_id, {})

    def differing(self, engine_id: str) -> frozenset[str]:
        """The presets that the engine does not generate twice with the same bits."""
        return frozenset(name for name, differs in self.self_checks(engine_id).items() if differs)

    def slot_released(self, slot: SlotName) -> None:
        """Its mover has taken it back: it is free now, whatever the node's last report said."""
        self._released[slot] = None
        while len(self._released) > RELEASED_MAX:
            self._released.popitem(last=False)
        device = self._foreign_live.get(slot.node_id, {}).pop(slot, None)
        if device is not None:
            self._foreign[slot.node_id] -= Counter((device,))
            self._changed(slot.node_id)

    def node(self, node_id: str, field: str = "node_id") -> NodeRecord:
        """The node of that name; `field` is what the asker calls it.

        Raises:
            NotFound: there is none.
        """
        found = self.nodes.get(node_id)
        if found is None:
            known = ", ".join(sorted(self.nodes)) or "none"
            raise NotFound(
                f"node {node_id} is not registered; there are: {known}",
                reason="NODE_UNKNOWN",
                field=field,
            )
        return found

    def engine(self, engine_id: str) -> EngineRecord:
        """The engine of that name.

        Raises:
            NotFound: there is none.
        """
        found = self.engines.get(engine_id)
        if found is None:
            raise NotFound(
                f"engine {engine_id} is not registered", reason="ENGINE_UNKNOWN", field="engine_id"
            )
        return found

    def device(self, engine_id: str) -> DeviceRecord:
        """The engine's device as its node knows it.

        Raises:
            NotFound: no such engine, or its node has come back without slots on that device.
        """
        engine = self.engine(engine_id)
        found = engine.device_of(self.node(engine.node_id))
        if found is None:
            raise NotFound(
                f"node {engine.node_id} has no slots on {engine.device} of engine {engine_id}",
                reason="DEVICE_UNKNOWN",
                field="device",
            )
        return found

    def place(self, engine_id: str) -> Place:
        """Where the engine's states rest.

        Raises:
            NotFound: as `device`.
        """
        device = self.device(engine_id)
        return place_of(self.node(self.engine(engine_id).node_id).host_id, device)

    def node_alive(self, node_id: str, now: float) -> bool:
        """Whether the node renewed within its lease."""
        return now < self._node_until.get(node_id, -math.inf)

    def engine_alive(self, engine_id: str, now: float) -> bool:
        """Whether the engine renewed within its lease.

        The engine counts from when it SENT its last renewal: it stops before we call it dead.
        """
        return now < self._engine_until.get(engine_id, -math.inf)

    def excuse(self, late_s: float, now: float) -> None:
        """Nobody was listened to for `late_s` before `now`: that much silence is nobody's own.

        A lease that was renewed meanwhile is not made longer than a lease is.
        """
        for until, lease_ms in (
            (self._node_until, self.node_lease_ms),
            (self._engine_until, self.engine_lease_ms),
        ):
            for name, until_s in until.items():
                until[name] = max(until_s, min(until_s + late_s, now + lease_ms / 1e3))

    def leases_in_force(self, now: float) -> tuple[int, int]:
        """How many nodes and engines renewed within their lease; from any thread."""
        nodes, engines = list(self._node_until.values()), list(self._engine_until.values())
        return sum(now < until for until in nodes), sum(now < until for until in engines)

    def alive_until(self, engine_id: str, node_id: str) -> float:
        """When the first of the two leases runs out, as long as neither is renewed."""
        engine = self._engine_until.get(engine_id, -math.inf)
        node = self._node_until.get(node_id, -math.inf)
        return engine if engine < node else node

    def party(self, engine_id: str) -> Party:
        """The engine and its node with their present incarnations."""
        engine = self.engine(engine_id)
        node = self.node(engine.node_id)
        return Party(engine_id, engine.incarnation, node.node_id, node.incarnation)

    def engine_gone(self, party: Party, now: float) -> bool:
        """Whether the process that the move began with is gone, or silent beyond its lease."""
        present = self.engines.get(party.engine_id)
        if present is None or present.incarnation != party.engine_incarnation:
            return True
        return not self.engine_alive(party.engine_id, now)

    def mover_gone(self, party: Party, now: float) -> bool:
        """Whether the mover that the move began with is gone, or silent beyond its lease."""
        present = self.nodes.get(party.node_id)
        if present is None or present.incarnation != party.node_incarnation:
            return True
        return not self.node_alive(party.node_id, now)

    def put_row(self, engine_id: str, incarnation: str, row: ProfileRow, now: float) -> None:
        """A row that was measured between two renewals; of another process it is no row."""
        engine = self.engines.get(engine_id)
        if engine is not None and engine.incarnation == incarnation:
            self._rows[engine_id][row.shape] = _Told(row, now)

    def rows(self, engine_id: str, now: float) -> tuple[ProfileRow, ...]:
        """What quanta were measured to take there, as old as they are now; by name of the shape."""
        told = self._rows.get(engine_id, {})
        return tuple(told[shape].aged(now) for shape in sorted(told, key=lambda one: one.name))

    def slots_used(
        self, sessions: tuple[SessionRecord, ...], moves: tuple[Move, ...]
    ) -> Counter[tuple[str, str]]:
        """Slots in use by node and device, as the directory counts plus what nodes report on top.

        A move that is open holds a slot at both ends.
        """
        used = self._slots_of_directory(sessions, moves) + self._slots_at_targets(moves)
        for node_id, foreign in self._foreign.items():
            for device, count in foreign.items():
                used[node_id, device] += count
        return used

    def _slots_of_directory(
        self, sessions: tuple[SessionRecord, ...], moves: tuple[Move, ...]
    ) -> Counter[tuple[str, str]]:
        """Slots in use as the directory counts, but for those that moves take at their targets."""
        used = Counter(self.slots_of(one.owner, one.node_id) for one in sessions if one.takes_slot)
        for move in moves:
            if move.phase is MovePhase.COMMITTED:
                used[self.slots_of(move.source.engine_id, move.source.node_id)] += 1
        return used

    def _slots_at_targets(self, moves: tuple[Move, ...]) -> Counter[tuple[str, str]]:
        return Counter(
            self.slots_of(move.target.engine_id, move.target.node_id)
            for move in moves
            if move.phase is not MovePhase.COMMITTED
        )

    def slots_of(self, engine_id: str, node_id: str) -> tuple[str, str]:
        """Node and device on which an engine's sessions take slots."""
        engine, node = self.engines.get(engine_id), self.nodes.get(node_id)
        if engine is None or node is None:
            return node_id, ""
        device = engine.device_of(node)
        return node_id, engine.device if device is None else device.name

    def engines_on(self, node_id: str) -> tuple[str, ...]:
        """The engines that are registered there."""
        return tuple(self._engines_on.get(node_id, ()))

    def candidates(
        self, sessions: tuple[SessionRecord, ...], moves: tuple[Move, ...], now: float
    ) -> tuple[Candidate, ...]:
        """A frozen snapshot to choose from, by name. `sessions` not closed, `moves` open."""
        utilizations = self._utilizations(sessions)
        kept = _by_node(self._slots_of_directory(sessions, moves))
        coming = _by_node(self._slots_at_targets(moves))
        found = (
            self.candidate(
                engine_id,
                kept[engine.node_id],
                coming[engine.node_id],
                utilizations.get(engine_id, 0.0),
                now,
            )
            for engine_id, engine in sorted(self.engines.items())
        )
        return tuple(one for one in found if one is not None)

    def candidate(
        self,
        engine_id: str,
        kept: Mapping[str, int],
        coming: Mapping[str, int],
        utilization: float,
        now: float,
    ) -> Candidate | None:
        """One engine to choose; None where its node has no slots on its device.

        `kept` and `coming` are the slots that the directory counts on its node, by device: in use,
        and taken at their targets by moves under way. What the node reports on top is added here.
        """
        engine = self.engines[engine_id]
        node = self.nodes.get(engine.node_id)
        device = None if node is None else engine.device_of(node)
        if node is None or device is None:
            return None
        for_moves = device.slots_total - kept.get(device.name, 0)
        for_moves -= self._foreign[node.node_id].get(device.name, 0)
        cordoned = self.cordoned(node.node_id)
        return Candidate(
            engine_id=engine_id,
            node_id=node.node_id,
            alive=not cordoned and now < self.alive_until(engine_id, node.node_id),
            cordoned=cordoned,
            slots_free=max(0, for_moves - coming.get(device.name, 0)),
            slots_total=device.slots_total,
            slot_bytes=device.slot_bytes,
            fingerprint=engine.fingerprint,
            place=place_of(node.host_id, device),
            slots_for_moves=max(0, for_moves),
            device=device.name,
            digest_rate_bytes_per_s=device.digest_rate_bytes_per_s,
            utilization=utilization,
            differing=self.differing(engine_id),
        )

    def _utilizations(self, sessions: tuple[SessionRecord, ...]) -> dict[str, float]:
        """By engine, in one pass: a fleet has many of both."""
        paced: defaultdict[str, list[Paced]] = defaultdict(list)
        for one in sessions:
            pace = pace_of(one)
            if pace is not None:
                paced[one.owner].append(pace)
        return {name: self.utilization_of(name, paces) for name, paces in paced.items()}

    def utilization_of(self, engine_id: str, paces: Iterable[Paced]) -> float:
        """Sum over sessions with a period of block time over period, in any order: how busy they
        keep it, as far as that was measured. It ranks engines; who fits is admission's to say.
        """
        told = self._rows.get(engine_id, {})
        return math.fsum(_share(told, pace) for pace in paces)


def pace_of(session: SessionRecord) -> Paced | None:
    """What a session generates, and how often; None where it keeps no pace."""
    if session.contract.period_ms <= 0 or session.state in _IDLE:
        return None
    return Paced(session.world.preset, session.contract)


def _share(told: Mapping[RequestShape, _Told], pace: Paced) -> float:
    known = told.get(shape_of(pace.preset, pace.contract))
    if known is None:
        return 0.0
    charge = known.row.charge
    return charge.block_ms(charge.steps_at_floor(pace.contract)) / pace.contract.period_ms


def _seat(engine: EngineRecord) -> tuple[str, str, str]:
    return engine.node_id, engine.device, engine.device_uuid


def _by_node(slots: Counter[tuple[str, str]]) -> defaultdict[str, dict[str, int]]:
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for (node_id, device), count in slots.items():
        found[node_id][device] = count
    return found


def _check(present: str, incarnation: str, kind: str, name: str) -> None:
    if present != incarnation:
        raise Fenced(
            f"{kind} {name} was registered by a newer process: stop, or register again",
            reason="INCARNATION_REPLACED",
            field="incarnation",
        )
