"""Choice of targets for a move and of an engine for a new session: filter, then policy. Pure.

Filters say no with a reason; the policy orders who is left. Nothing here reads a clock or the
directory: a frozen snapshot of the fleet goes in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from services.placement.device import Nearness, Place, nearness
from services.placement.ring import distance
from worldline.contract import Contract, DeterminismTier
from worldline.errors import CapacityExhausted, InvalidInput
from worldline.state.manifest import Fingerprint
from worldline.state.remedies import mismatch
from worldline.verdict import RejectReason, Verdict

#: Facts that no tier lets differ: other weights or other code are another world.
WORLD_FACTS = ("engine_code", "weights")
RETRY_AFTER_MS = 1_000
#: Targets that admission is asked about at once: enough to spread a fleet's moves over, few enough
#: to be looked at one by one.
TARGETS_MAX = 16
#: Of why each candidate will not do, so much is put into words.
REFUSALS_SHOWN_MAX = 5
#: What a T0 session may do about a target that is not exact.
_OFFER = ", unless its contract lets it drop to T1 (tier_drop_allowed)"


class Candidate(NamedTuple):
    """One engine of the fleet as the directory and the leases have it now."""

    engine_id: str
    node_id: str
    alive: bool
    slots_free: int
    slots_total: int
    slot_bytes: int
    fingerprint: Fingerprint
    place: Place
    #: Free but for what moves under way take at their targets: admission counts those itself.
    slots_for_moves: int = 0
    #: As the node calls it.
    device: str = "cpu"
    #: What the host's cores digest in a second, of all its nodes together; 0 where the device does.
    digest_rate_bytes_per_s: float = 0.0
    #: Sum over resident sessions with a period of block time over period.
    utilization: float = 0.0
    #: Its node is drained: not alive for whoever wants to go there.
    cordoned: bool = False
    #: Presets that it does not generate twice with the same bits: it takes no T0 world of them.
    differing: frozenset[str] = frozenset()


class MoveWish(NamedTuple):
    """What a move asks of its target. `node_id` empty: any node but the source's."""

    source_node_id: str
    source: Place
    fingerprint: Fingerprint
    contract: Contract
    extent_bytes: int
    node_id: str = ""
    preset: str = ""


class Chosen(NamedTuple):
    """The engine chosen; `tier_dropped` when only T1 holds there."""

    engine_id: str
    tier_dropped: bool = False


class Rank(NamedTuple):
    """How good a target is; less is better."""

    tier_dropped: bool
    nearness: Nearness
    #: Whoever follows the source on the ring: other sources prefer others.
    distance: int
    node_id: str
    slots_free_negated: int
    engine_id: str


@dataclass(frozen=True, slots=True)
class _No:
    """Why one candidate will not do."""

    reason: RejectReason
    #: Only a handful is ever put into words.
    text: Callable[[], str]
    retry_after_ms: int = 0
    numbers: Mapping[str, float] = field(default_factory=dict)


def choose_targets(fleet: Collection[Candidate], wish: MoveWish) -> tuple[Chosen, ...] | Verdict:
    """The engines to move to, best first, or the verdict that none will do and why.

    At most `TARGETS_MAX`, every node's best before any node's second: what NVLink reaches, the same
    host, then whoever follows the source on the ring (`ring`), so that sources spread. Of those the
    nearest come first, then those with most free slots. A tier is dropped only where no engine with
    an equal fingerprint will do. Who is busy is not asked: admission knows, and may let the move
    wait.
    """
    ranks = [rank_of(one, wish) for one in fleet if will_do(one, wish)]
    if ranks:
        dropped = min(ranks).tier_dropped
        found = best([one for one in ranks if one.tier_dropped == dropped])
        return tuple([Chosen(one.engine_id, dropped) for one in found])
    return _none_fits(
        _refusals(fleet, wish), RejectReason.NO_TARGET, "no node can take this session"
    )


def best(ranks: list[Rank]) -> list[Rank]:
    """As many of those as admission is asked about, best first, over as many nodes as may be."""
    if len(ranks) > TARGETS_MAX:
        seen: Counter[str] = Counter()
        turns: list[tuple[int, Rank]] = []
        for one in sorted(ranks):
            turns.append((seen[one.node_id], one))
            seen[one.node_id] += 1
        ranks = [one for _, one in sorted(turns)[:TARGETS_MAX]]
    return sorted(ranks, key=_order)


#: Of those that admission is asked about, nearest first, then those with most free slots.
_order = attrgetter("nearness", "slots_free_negated", "distance", "node_id", "engine_id")


def will_do(one: Candidate, wish: MoveWish) -> bool:
    """Whether the move may go there: nothing that waiting cannot cure is in the way."""
    return (
        one.alive
        and one.slots_for_moves >= 1
        and wish.extent_bytes <= one.slot_bytes
        and _is_asked(one, wish)
        and tier_drops(one.fingerprint, one.differing, wish) is not None
    )


def tier_drops(theirs: Fingerprint, differing: frozenset[str], wish: MoveWish) -> bool | None:
    """Whether the session drops to T1 on engines of that fingerprint; None: it cannot go there.

    I6: T0 only between equal fingerprints, and where its preset is not among those that are
    `differing`; no tier between different worlds.
    """
    exact = _is_t0(wish.contract)
    repeats = not exact or wish.preset not in differing
    if theirs.hash == wish.fingerprint.hash and repeats:
        return False
    if exact and not wish.contract.tier_drop_allowed:
        return None
    return exact if _world_of(theirs) == _world_of(wish.fingerprint) else None


def choose_to_resume(
    fleet: Collection[Candidate], wish: MoveWish, last_engine_id: str
) -> Chosen | Verdict:
    """Of engines that have a parked state at hand, the one that takes it up: one that had it last,
    else the first by name. A tier is dropped only where no other will do.
    """
    ranks = [
        (drops, one.engine_id != last_engine_id, one.engine_id)
        for one in fleet
        if (drops := tier_drops(one.fingerprint, one.differing, wish)) is not None
    ]
    if ranks:
        drops, _, engine_id = min(ranks)
        return Chosen(engine_id, drops)
    refusals = [_why_not_equal(one, wish) for one in sorted(fleet, key=attrgetter("engine_id"))]
    return _none_fits(
        [no for no in refusals if no is not None],
        RejectReason.NO_TARGET,
        "no engine of its node can take this session up",
    )


def _world_of(fingerprint: Fingerprint) -> tuple[str | None, ...]:
    return tuple(fingerprint.facts.get(name) for name in WORLD_FACTS)


def _is_asked(one: Candidate, wish: MoveWish) -> bool:
    return one.node_id != wish.source_node_id and wish.node_id in ("", one.node_id)


def rank_of(one: Candidate, wish: MoveWish) -> Rank:
    """How good it is, where it will do."""
    return Rank(
        bool(tier_drops(one.fingerprint, one.differing, wish)),
        nearness(wish.source, one.place),
        distance(wish.source_node_id, one.node_id),
        one.node_id,
        -one.slots_free,
        one.engine_id,
    )


def _refusals(fleet: Collection[Candidate], wish: MoveWish) -> list[_No]:
    """Why each will not do, by name."""
    asked = sorted(
        (one for one in fleet if _is_asked(one, wish)), key=lambda one: (one.node_id, one.engine_id)
    )
    return [no for one in asked if (no := _why_not_target(one, wish)) is not None]


def choose_engine(
    fleet: tuple[Candidate, ...],
    node_id: str,
    state_bytes: int,
    preset: str,
    contract: Contract | None = None,
) -> Chosen | Verdict:
    """The engine for a new session, least utilized first; `state_bytes` 0 where not yet known.

    A T0 session goes to no engine that does not repeat itself; where all are such it drops to T1,
    if its contract lets it. Without a contract no tier is asked for.

    Raises:
        InvalidInput: no engine of the fleet serves the preset.
    """
    _check_known(fleet, preset)
    exact = contract is not None and _is_t0(contract)
    may_drop = contract is not None and contract.tier_drop_allowed
    fits: list[tuple[bool, float, int, str, str]] = []
    refusals: list[_No] = []
    for one in sorted(fleet, key=lambda each: (each.node_id, each.engine_id)):
        if node_id not in ("", one.node_id):
            continue
        no = _why_no_room(one, state_bytes, one.slots_free, RejectReason.DEVICE_FULL)
        no = _why_not_served(one, preset) or no
        drops = exact and preset in one.differing
        if drops and not may_drop:
            no = no or _not_deterministic(one, preset)
        if no is not None:
            refusals.append(no)
            continue
        fits.append((drops, one.utilization, -one.slots_free, one.node_id, one.engine_id))
    if not fits:
        return _none_fits(refusals, RejectReason.NO_TARGET, "no engine can take a new session")
    dropped, _, _, _, engine_id = min(fits)
    return Chosen(engine_id, dropped)


def serves(one: Candidate, preset: str) -> bool:
    """Whether the engine has a model for the preset. One that does not say is taken to have it."""
    return one.fingerprint.presets is None or preset in one.fingerprint.presets


def _check_known(fleet: tuple[Candidate, ...], preset: str) -> None:
    if not fleet or any(serves(one, preset) for one in fleet):
        return
    known = sorted({name for one in fleet for name in one.fingerprint.presets or ()})
    raise InvalidInput(
        f"unknown preset {preset!r}: no engine serves it; choose one of {', '.join(known)}",
        field="world.preset",
    )


def _why_not_served(one: Candidate, preset: str) -> _No | None:
    if serves(one, preset):
        return None
    return _No(RejectReason.NO_TARGET, lambda: f"{one.engine_id} does not serve {preset}")


def drained(node_id: str) -> str:
    """Why nothing goes to a node that is drained, in words."""
    return f"{node_id} is drained and takes no sessions before `worldline undrain {node_id}`"


def no_room(node_id: str, error: CapacityExhausted, full: RejectReason) -> Verdict:
    """The verdict that a mover's refusal of a slot stands for: `full`, or a state too large."""
    if error.reason == RejectReason.STATE_TOO_LARGE.name:
        return Verdict.reject(RejectReason.STATE_TOO_LARGE, f"{node_id}: {error.message}")
    return Verdict.reject(
        full,
        f"{node_id}: {error.message}",
        retry_after_ms=error.retry_after_ms or RETRY_AFTER_MS,
    )


def _is_t0(contract: Contract) -> bool:
    return contract.determinism_tier is DeterminismTier.T0_BITWISE


def _why_not_target(one: Candidate, wish: MoveWish) -> _No | None:
    no = _why_no_room(one, wish.extent_bytes, one.slots_for_moves, RejectReason.TARGET_FULL)
    if no is not None and no.reason is not RejectReason.TARGET_FULL:
        return no
    # Before a full target: waiting never cures a fingerprint.
    return _why_not_equal(one, wish) or no


def _why_no_room(
    one: Candidate, state_bytes: int, slots_free: int, full: RejectReason
) -> _No | None:
    if one.cordoned:
        # When that ends, an operator knows.
        return _No(RejectReason.NO_TARGET, lambda: drained(one.node_id))
    if not one.alive:
        return _No(RejectReason.NO_TARGET, lambda: f"{one.engine_id} is not alive", RETRY_AFTER_MS)
    if state_bytes > one.slot_bytes:
        return _No(
            RejectReason.STATE_TOO_LARGE,
            lambda: (
                f"{one.node_id} has slots of {one.slot_bytes} bytes on {one.device}, the state has "
                f"{state_bytes}"
            ),
            numbers={"slot_bytes": float(one.slot_bytes), "state_bytes": float(state_bytes)},
        )
    if slots_free < 1:
        numbers = {
            "slots_total": float(one.slots_total),
            "slots_used": float(one.slots_total - slots_free),
        }
        return _No(
            full,
            lambda: f"all {one.slots_total} slots of {one.node_id} on {one.device} are taken",
            RETRY_AFTER_MS,
            numbers,
        )
    return None


def _why_not_equal(one: Candidate, wish: MoveWish) -> _No | None:
    if tier_drops(one.fingerprint, one.differing, wish) is not None:
        return None
    if one.fingerprint.hash == wish.fingerprint.hash:
        return _not_deterministic(one, wish.preset)
    return _No(RejectReason.FINGERPRINT_MISMATCH, lambda: _mismatch(one, wish))


def _not_deterministic(one: Candidate, preset: str) -> _No:
    return _No(
        RejectReason.NOT_DETERMINISTIC,
        lambda: (
            f"{one.engine_id} does not generate {preset} twice with the same bits and takes no T0 "
            f"world of it{_OFFER}"
        ),
    )


def _mismatch(one: Candidate, wish: MoveWish) -> str:
    found = mismatch(wish.fingerprint, one.fingerprint)
    # Between different worlds no tier would help.
    offer = _OFFER if _world_of(one.fingerprint) == _world_of(wish.fingerprint) else ""
    return f"{one.engine_id} has another configuration ({found}){offer}"


def no_room_for_period(period_ms: float, verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a move of a session with that period, from admission's on it at each target:
    all of them rejects. The numbers are of the target that comes closest.
    """
    closest = min(verdicts, key=lambda one: one.numbers.get("utilization_wanted", math.inf))
    refusals = [
        _No(one.reason, partial(str, one.explanation), one.retry_after_ms)
        for one in verdicts
        if one.reason is not None
    ]
    return _none_fits(
        refusals,
        RejectReason.NO_TARGET,
        f"no target can keep the session's period of {period_ms:g} ms",
        closest.numbers,
        "; make room there (close or move a session with a period) or add an engine",
    )


def _none_fits(
    refusals: list[_No],
    otherwise: RejectReason,
    summary: str,
    numbers: Mapping[str, float] | None = None,
    way_out: str = "",
) -> Verdict:
    """One reason where all agree; else the general one. Retry when the soonest may change.

    `numbers` are those of the one refusal where there is one, unless they are given.
    """
    counts = Counter(no.reason for no in refusals)
    reason = next(iter(counts)) if len(counts) == 1 else otherwise
    waits = [no.retry_after_ms for no in refusals if no.retry_after_ms > 0]
    if numbers is None:
        numbers = refusals[0].numbers if len(refusals) == 1 else {}
    return Verdict.reject(
        reason,
        f"{summary}: {_told(refusals, counts)}{way_out}",
        {"candidates": float(len(refusals)), **numbers},
        retry_after_ms=min(waits, default=0),
    )


def _told(refusals: list[_No], counts: Counter[RejectReason]) -> str:
    """A handful in words, of every reason one before a second of any; of the rest, how many."""
    if not refusals:
        return "no other engine is registered"
    seen: Counter[RejectReason] = Counter()
    turns: list[tuple[int, int]] = []
    for place, no in enumerate(refusals):
        turns.append((seen[no.reason], place))
        seen[no.reason] += 1
    shown = [place for _, place in sorted(turns)[:REFUSALS_SHOWN_MAX]]
    texts = [refusals[place].text() for place in sorted(shown)]
    if len(refusals) > len(shown):
        found = ", ".join(f"{count} {reason.name}" for reason, count in counts.most_common())
        texts.append(f"and {len(refusals) - len(shown)} more; of all {len(refusals)}: {found}")
    return "; ".join(texts)
