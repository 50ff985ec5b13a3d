"""Fleet: nodes and engines with their leases; who is alive, and what each reported last.

Durable facts are the directory's; leases live here, on the caller's monotonic clock. After a
restart everyone registered gets one lease to report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from services.placement.choose import Candidate
from services.placement.move import Move
from services.placement.phases import MovePhase
from services.placement.records import EngineRecord, NodeRecord, SessionRecord, SessionState
from services.placement.values import Party
from worldline.errors import Fenced, NotFound
from worldline.fields import identifier, positive, whole


@dataclass(frozen=True, slots=True)
class Profile:
    """What one quantum of a preset takes on an engine's device, measured there.

    Raises:
        InvalidInput: a number out of range; `field` is `profiles.<name>`.
    """

    preset: str
    quantum_ms: float
    quanta_per_block: int

    def __post_init__(self) -> None:
        identifier(self.preset, "profiles.preset")
        positive(self.quantum_ms, "profiles.quantum_ms")
        whole(self.quanta_per_block, "profiles.quanta_per_block", at_least=1)

    @property
    def block_ms(self) -> float:
        """Time of one block."""
        return self.quantum_ms * self.quanta_per_block


class Fleet:
    """Nodes and engines by name. An unknown one is `NotFound`, a replaced one `Fenced`."""

    def __init__(self, *, node_lease_ms: int, engine_lease_ms: int) -> None:
        self.node_lease_ms = node_lease_ms
        self.engine_lease_ms = engine_lease_ms
        self.nodes: dict[str, NodeRecord] = {}
        self.engines: dict[str, EngineRecord] = {}
        self._node_renewed: dict[str, float] = {}
        self._engine_renewed: dict[str, float] = {}
        self._foreign: dict[str, int] = {}
        self._profiles: dict[str, dict[str, Profile]] = {}

    def put_node(self, node: NodeRecord, now: float) -> None:
        """Register, or replace by the next incarnation."""
        self.nodes[node.node_id] = node
        self._node_renewed[node.node_id] = now
        self._foreign[node.node_id] = 0

    def put_engine(self, engine: EngineRecord, now: float) -> None:
        """Register, or replace by the next incarnation."""
        self.engines[engine.engine_id] = engine
        self._engine_renewed[engine.engine_id] = now
        self._profiles[engine.engine_id] = {}

    def renew_node(self, node_id: str, incarnation: str, foreign: int, now: float) -> None:
        """Extend a node's lease.

        Raises:
            NotFound: register first. Fenced: another process has this name now.
        """
        _check(self.node(node_id).incarnation, incarnation, "node", node_id)
        self._node_renewed[node_id] = now
        self._foreign[node_id] = foreign

    def renew_engine(
        self, engine_id: str, incarnation: str, profiles: Iterable[Profile], now: float
    ) -> None:
        """Extend an engine's lease.

        Raises:
            NotFound: register first. Fenced: another process has this name now.
        """
        _check(self.engine(engine_id).incarnation, incarnation, "engine", engine_id)
        self._engine_renewed[engine_id] = now
        self._profiles[engine_id].update({one.preset: one for one in profiles})

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

    def node_alive(self, node_id: str, now: float) -> bool:
        """Whether the node renewed within its lease."""
        renewed = self._node_renewed.get(node_id)
        return renewed is not None and now - renewed < self.node_lease_ms / 1e3

    def engine_alive(self, engine_id: str, now: float) -> bool:
        """Whether the engine renewed within its lease.

        The engine counts from when it SENT its last renewal: it stops before we call it dead.
        """
        renewed = self._engine_renewed.get(engine_id)
        return renewed is not None and now - renewed < self.engine_lease_ms / 1e3

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

    def profile(self, engine_id: str, preset: str) -> Profile | None:
        """What a preset was measured to take there."""
        return self._profiles.get(engine_id, {}).get(preset)

    def slots_used(
        self, sessions: tuple[SessionRecord, ...], moves: tuple[Move, ...]
    ) -> Counter[str]:
        """Slots in use by node, as the directory counts them plus what nodes report on top.

        A move that is open holds a slot at both ends.
        """
        used = Counter(one.node_id for one in sessions)
        for move in moves:
            committed = move.phase is MovePhase.COMMITTED
            used[move.source.node_id if committed else move.target.node_id] += 1
        for node_id, foreign in self._foreign.items():
            used[node_id] += foreign
        return used

    def candidates(
        self, sessions: tuple[SessionRecord, ...], moves: tuple[Move, ...], now: float
    ) -> tuple[Candidate, ...]:
        """A frozen snapshot to choose from, by name. `sessions` not closed, `moves` open."""
        used = self.slots_used(sessions, moves)
        moves_in = Counter(one.target.node_id for one in moves if one.phase.before_commit)
        return tuple(
            Candidate(
                engine_id=engine.engine_id,
                node_id=engine.node_id,
                alive=self.engine_alive(engine.engine_id, now)
                and self.node_alive(engine.node_id, now),
                slots_free=max(0, node.slots_total - used[engine.node_id]),
                slots_total=node.slots_total,
                slot_bytes=node.slot_bytes,
                fingerprint=engine.fingerprint,
                moves_in=moves_in[engine.node_id],
                utilization=self.utilization(engine.engine_id, sessions),
            )
            for _, engine in sorted(self.engines.items())
            if (node := self.nodes.get(engine.node_id)) is not None
        )

    def utilization(self, engine_id: str, sessions: tuple[SessionRecord, ...]) -> float:
        """Sum over an engine's sessions with a period of block time over period."""
        total = 0.0
        for one in sessions:
            profile = self.profile(engine_id, one.world.preset)
            counted = one.owner == engine_id and one.state is not SessionState.LOST
            if counted and profile is not None and one.contract.period_ms > 0:
                total += profile.block_ms / one.contract.period_ms
        return total


def _check(present: str, incarnation: str, kind: str, name: str) -> None:
    if present != incarnation:
        raise Fenced(
            f"{kind} {name} was registered by a newer process: stop, or register again",
            reason="INCARNATION_REPLACED",
            field="incarnation",
        )
