"""Shortlist: the few receivers that a move would want, without a look at the rest of a fleet. Pure.

It answers what `choose_targets` answers about all candidates. A change touches its node, which is
looked at again before the next choice; a choice goes round the ring until it has enough.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

from services.placement.changes import Changes
from services.placement.choose import (
    TARGETS_MAX,
    Candidate,
    Chosen,
    MoveWish,
    Rank,
    best,
    choose_targets,
    rank_of,
    tier_drops,
    will_do,
)
from services.placement.device import Nearness, Place, nearness
from services.placement.fleet import Fleet
from services.placement.occupancy import Occupancy
from services.placement.ring import SPAN, Ring, Stop, point_of, round_trip
from services.placement.targets import Target, target_of
from worldline.state.manifest import Fingerprint
from worldline.verdict import Verdict

#: Engines of which a move needs to look at one only where another will not do.
_Kind = tuple[Fingerprint, int, frozenset[str]]


class Shortlist:
    """Every engine of a fleet, found by what a move wants. `now` never goes back."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._touched: set[str] = set(fleet.nodes)
        self._occupancy = Occupancy(fleet, self._touched.add)
        #: Without their utilization: no move asks for that.
        self._candidates: dict[str, Candidate] = {}
        #: Made when they are asked for first.
        self._targets: dict[str, Target] = {}
        self._on_node: dict[str, tuple[str, ...]] = {}
        #: The engines that live and have a slot for a move; by fingerprint, size of a slot, and
        #: presets that differ.
        self._rings: dict[_Kind, Ring] = {}
        self._neighbours = _Neighbours()
        #: Whoever was alive when leases were checked is alive until then.
        self._leases_hold_until = -math.inf
        fleet.on_change(self._touched.add)

    # --- changes ---

    def follow(self, changes: Changes) -> None:
        """What changed in the directory since the last time."""
        for session in changes.sessions:
            self._occupancy.put_session(session)
        for move in changes.moves:
            self._occupancy.put_move(move)

    # --- answers ---

    def choose(self, wish: MoveWish, now: float) -> tuple[Chosen, ...] | Verdict:
        """As `choose_targets` of all candidates."""
        self._settle(now)
        names, drops = self._find(wish)
        if names:
            return tuple([Chosen(name, drops) for name in names])
        return self._among(wish)

    def targets(self, wish: MoveWish, now: float) -> tuple[Target, ...] | Verdict:
        """The same, as admission is asked about them."""
        self._settle(now)
        names, drops = self._find(wish)
        if names:
            return tuple([self._target(name, drops) for name in names])
        choice = self._among(wish)
        return choice if isinstance(choice, Verdict) else tuple(map(self.target, choice))

    def target(self, chosen: Chosen) -> Target:
        """One that was chosen just now, as admission is asked about it."""
        return self._target(chosen.engine_id, chosen.tier_dropped)

    def _target(self, name: str, dropped: bool) -> Target:
        known = self._targets.get(name)
        if known is None or known.tier_dropped is not dropped:
            chosen = Chosen(name, dropped)
            known = self._targets[name] = target_of(chosen, self._candidates[name], self._fleet)
        return known

    def candidates(self, now: float) -> tuple[Candidate, ...]:
        """All, by name: what `Fleet.candidates` makes from all sessions and moves."""
        self._settle(now)
        return tuple(
            one._replace(utilization=self._occupancy.utilization(name))
            for name, one in sorted(self._candidates.items())
        )

    # --- choosing ---

    def _find(self, wish: MoveWish) -> tuple[list[str], bool]:
        """The best engines by way of the rings, and whether the tier drops there; none: look at all
        that are asked about (`_among`).
        """
        if not wish.node_id:
            for drops in (False, True):
                names = self._best(wish, drops)
                if names:
                    return names, drops
        return [], False

    def _among(self, wish: MoveWish) -> tuple[Chosen, ...] | Verdict:
        if not wish.node_id:
            return choose_targets(self._candidates.values(), wish)
        here = self._on_node.get(wish.node_id, ())
        return choose_targets([self._candidates[name] for name in here], wish)

    def _best(self, wish: MoveWish, drops: bool) -> list[str]:
        """The engines that admission is asked about, best first."""
        near, candidates = self._near(wish, drops), self._candidates
        stops = self._stops(wish, drops, near)
        if not near and len(stops) <= TARGETS_MAX:
            # All of them: in the order of their distance already.
            names = [engine_id for _, _, engine_id in stops]
            return sorted(names, key=lambda name: -candidates[name].slots_free)
        start = point_of(wish.source_node_id)
        ranks = [
            Rank(
                drops,
                Nearness.ELSEWHERE,
                (point - start) % SPAN,
                node_id,
                -candidates[engine_id].slots_free,
                engine_id,
            )
            for point, node_id, engine_id in stops
        ]
        return [one.engine_id for one in best(near + ranks)]

    def _stops(self, wish: MoveWish, drops: bool, near: list[Rank]) -> list[Stop]:
        """Of all that are not near and will do, those that can be among the best, and hardly more;
        in the order of their distance.
        """
        known = {one.engine_id for one in near}
        nodes = {one.node_id for one in near}
        source = wish.source_node_id
        stops: list[Stop] = []
        for stop in self._trip(wish, drops, point_of(source)):
            _, node_id, engine_id = stop
            if node_id not in nodes:
                if len(nodes) >= TARGETS_MAX:
                    break
                if node_id == source:
                    continue
                nodes.add(node_id)
            if engine_id not in known:
                stops.append(stop)
        return stops

    def _near(self, wish: MoveWish, drops: bool) -> list[Rank]:
        candidates = [self._candidates[name] for name in self._neighbours.of(wish.source)]
        return [
            rank_of(one, wish)
            for one in candidates
            if tier_drops(one.fingerprint, one.differing, wish) is drops
            and nearness(wish.source, one.place) is not Nearness.ELSEWHERE
            and will_do(one, wish)
        ]

    def _trip(self, wish: MoveWish, drops: bool, start: int) -> Iterator[Stop]:
        rings = [
            ring
            for (fingerprint, slot_bytes, differing), ring in self._rings.items()
            if slot_bytes >= wish.extent_bytes and tier_drops(fingerprint, differing, wish) is drops
        ]
        return round_trip(rings, start)

    # --- keeping up ---

    def _settle(self, now: float) -> None:
        """Look again at the nodes that something changed on, leases that ran out among it."""
        if now >= self._leases_hold_until:
            self._check_leases(now)
        while self._touched:
            self._look_at(self._touched.pop(), now)

    def _check_leases(self, now: float) -> None:
        """A look at every lease, from which on none is looked at until the first may run out: all
        that are renewed later hold at least as long as one of now.
        """
        fleet = self._fleet
        holds_until = now + min(fleet.node_lease_ms, fleet.engine_lease_ms) / 1e3
        for one in self._candidates.values():
            if one.alive:
                until = fleet.alive_until(one.engine_id, one.node_id)
                if now >= until:
                    self._touched.add(one.node_id)
                else:
                    holds_until = min(holds_until, until)
        self._leases_hold_until = holds_until

    def _look_at(self, node_id: str, now: float) -> None:
        kept, coming = self._occupancy.kept(node_id), self._occupancy.coming(node_id)
        found = [
            one
            for engine_id in self._fleet.engines_on(node_id)
            if (one := self._fleet.candidate(engine_id, kept, coming, 0.0, now)) is not None
        ]
        names = tuple([one.engine_id for one in found])
        were = self._on_node.get(node_id, ())
        if were != names:
            for gone in set(were).difference(names):
                # Not where it has a new node, which was looked at before this one.
                if self._candidates[gone].node_id == node_id:
                    self._replace(self._candidates.pop(gone), None)
            self._on_node[node_id] = names
        for one in found:
            before = self._candidates.get(one.engine_id)
            self._targets.pop(one.engine_id, None)
            self._candidates[one.engine_id] = one
            self._replace(before, one)

    def _replace(self, before: Candidate | None, after: Candidate | None) -> None:
        old, new = _kind(before), _kind(after)
        if before is None or after is None or old != new or before.node_id != after.node_id:
            if before is not None and old is not None:
                self._rings[old].take(_stop(before))
                if not self._rings[old]:
                    del self._rings[old]
            if after is not None and new is not None:
                self._rings.setdefault(new, Ring()).add(_stop(after))
        self._neighbours.replace(before, after)


_NOBODY: Mapping[str, None] = {}


class _Neighbours:
    """Engines by where they are: on a host, on a GPU, and within NVLink's reach of a GPU."""

    def __init__(self) -> None:
        self._on_host: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._on_gpu: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._linked: defaultdict[str, dict[str, None]] = defaultdict(dict)

    def replace(self, before: Candidate | None, after: Candidate | None) -> None:
        """An engine has come, gone or moved."""
        if before is not None and after is not None and before.place == after.place:
            return
        if before is not None:
            for index in self._of(before.place):
                index.pop(before.engine_id, None)
        if after is not None:
            for index in self._of(after.place):
                index[after.engine_id] = None

    def of(self, source: Place) -> dict[str, None]:
        """Whoever may be near; `nearness` says whether it is."""
        found = dict(self._on_host.get(source.host_id, _NOBODY))
        if source.device_uuid:
            found.update(self._linked.get(source.device_uuid, _NOBODY))
            for peer in source.nvlink_peers:
                found.update(self._on_gpu.get(peer, _NOBODY))
        return found

    def _of(self, place: Place) -> Iterator[dict[str, None]]:
        yield self._on_host[place.host_id]
        if place.device_uuid:
            yield self._on_gpu[place.device_uuid]
        for peer in place.nvlink_peers:
            yield self._linked[peer]


def _kind(one: Candidate | None) -> _Kind | None:
    """On which ring it is; None where it is on none."""
    if one is None or not one.alive or one.slots_for_moves < 1:
        return None
    return one.fingerprint, one.slot_bytes, one.differing


def _stop(one: Candidate) -> Stop:
    return point_of(one.node_id), one.node_id, one.engine_id
