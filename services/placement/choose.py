"""Choice of a target for a move and of an engine for a new session: filter, then policy. Pure.

Filters say no with a reason; the policy orders who is left. Nothing here reads a clock or the
directory: a frozen snapshot of the fleet goes in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from worldline.contract import Contract, DeterminismTier
from worldline.errors import CapacityExhausted
from worldline.state.manifest import Fingerprint
from worldline.verdict import RejectReason, Verdict

#: Facts that no tier lets differ: other weights or other code are another world.
WORLD_FACTS = ("engine_code", "weights")
RETRY_AFTER_MS = 1_000


@dataclass(frozen=True, slots=True)
class Candidate:
    """One engine of the fleet as the directory and the leases have it now."""

    engine_id: str
    node_id: str
    alive: bool
    slots_free: int
    slots_total: int
    slot_bytes: int
    fingerprint: Fingerprint
    moves_in: int
    #: Sum over resident sessions with a period of block time over period.
    utilization: float = 0.0


@dataclass(frozen=True, slots=True)
class MoveWish:
    """What a move asks of its target. `node_id` empty: any node but the source's."""

    source_node_id: str
    fingerprint: Fingerprint
    contract: Contract
    extent_bytes: int
    node_id: str = ""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The engine chosen; `tier_dropped` when only T1 holds there."""

    engine_id: str
    tier_dropped: bool = False


@dataclass(frozen=True, slots=True)
class _No:
    """Why one candidate will not do."""

    reason: RejectReason
    text: str
    retry_after_ms: int = 0
    numbers: Mapping[str, float] = field(default_factory=dict)


def choose_target(fleet: tuple[Candidate, ...], wish: MoveWish) -> Chosen | Verdict:
    """The engine to move to, or the verdict that none will do and why each will not.

    Order: equal fingerprints before a dropped tier, then most free slots, then name.
    """
    fits: list[tuple[bool, int, str, str]] = []
    refusals: list[_No] = []
    for one in sorted(fleet, key=lambda each: (each.node_id, each.engine_id)):
        if one.node_id == wish.source_node_id or wish.node_id not in ("", one.node_id):
            continue
        no = _why_not_target(one, wish)
        if no is not None:
            refusals.append(no)
            continue
        dropped = one.fingerprint.hash != wish.fingerprint.hash and _is_t0(wish)
        fits.append((dropped, -one.slots_free, one.node_id, one.engine_id))
    if not fits:
        return _none_fits(refusals, RejectReason.NO_TARGET, "no node can take this session")
    dropped, _, _, engine_id = min(fits)
    return Chosen(engine_id, tier_dropped=dropped)


def choose_engine(fleet: tuple[Candidate, ...], node_id: str, state_bytes: int) -> Chosen | Verdict:
    """The engine for a new session, least utilized first; `state_bytes` 0 where not yet known."""
    fits: list[tuple[float, int, str, str]] = []
    refusals: list[_No] = []
    for one in sorted(fleet, key=lambda each: (each.node_id, each.engine_id)):
        if node_id not in ("", one.node_id):
            continue
        no = _why_no_room(one, state_bytes, RejectReason.DEVICE_FULL)
        if no is not None:
            refusals.append(no)
            continue
        fits.append((one.utilization, -one.slots_free, one.node_id, one.engine_id))
    if not fits:
        return _none_fits(refusals, RejectReason.NO_TARGET, "no engine can take a new session")
    return Chosen(min(fits)[3])


def no_room(node_id: str, error: CapacityExhausted, full: RejectReason) -> Verdict:
    """The verdict that a mover's refusal of a slot stands for: `full`, or a state too large."""
    if error.reason == RejectReason.STATE_TOO_LARGE.name:
        return Verdict.reject(RejectReason.STATE_TOO_LARGE, f"{node_id}: {error.message}")
    return Verdict.reject(
        full,
        f"{node_id}: {error.message}",
        retry_after_ms=error.retry_after_ms or RETRY_AFTER_MS,
    )


def _is_t0(wish: MoveWish) -> bool:
    return wish.contract.determinism_tier is DeterminismTier.T0_BITWISE


def _why_not_target(one: Candidate, wish: MoveWish) -> _No | None:
    no = _why_no_room(one, wish.extent_bytes, RejectReason.TARGET_FULL)
    if no is not None and no.reason is not RejectReason.TARGET_FULL:
        return no
    # Before a full target: waiting never cures a fingerprint.
    mismatch = _why_not_equal(one, wish)
    if mismatch is not None:
        return mismatch
    if no is not None:
        return no
    # A named target that is busy is admission's to judge, with its own arithmetic.
    if not wish.node_id and one.moves_in > 0:
        text = f"{one.node_id} is receiving another session"
        return _No(RejectReason.RECEIVER_BUSY, text, RETRY_AFTER_MS)
    return None


def _why_no_room(one: Candidate, state_bytes: int, full: RejectReason) -> _No | None:
    if not one.alive:
        return _No(RejectReason.NO_TARGET, f"{one.engine_id} is not alive", RETRY_AFTER_MS)
    if state_bytes > one.slot_bytes:
        return _No(
            RejectReason.STATE_TOO_LARGE,
            f"{one.node_id} has slots of {one.slot_bytes} bytes, the state has {state_bytes}",
            numbers={"slot_bytes": float(one.slot_bytes), "state_bytes": float(state_bytes)},
        )
    if one.slots_free < 1:
        text = f"all {one.slots_total} slots of {one.node_id} are taken"
        numbers = {
            "slots_total": float(one.slots_total),
            "slots_used": float(one.slots_total - one.slots_free),
        }
        return _No(full, text, RETRY_AFTER_MS, numbers)
    return None


def _why_not_equal(one: Candidate, wish: MoveWish) -> _No | None:
    """I6: T0 only between equal fingerprints; no tier between different worlds."""
    if one.fingerprint.hash == wish.fingerprint.hash:
        return None
    mine, theirs = wish.fingerprint.facts, one.fingerprint.facts
    same_world = all(mine.get(name) == theirs.get(name) for name in WORLD_FACTS)
    if same_world and (not _is_t0(wish) or wish.contract.tier_drop_allowed):
        return None
    differences = "; ".join(wish.fingerprint.differences(one.fingerprint)) or "the hash"
    return _No(
        RejectReason.FINGERPRINT_MISMATCH,
        f"{one.engine_id} has another configuration ({differences})",
    )


def _none_fits(refusals: list[_No], otherwise: RejectReason, summary: str) -> Verdict:
    """One reason where all agree; else the general one. Retry when the soonest may change."""
    reasons = {no.reason for no in refusals}
    reason = reasons.pop() if len(reasons) == 1 else otherwise
    texts = [no.text for no in refusals] or ["no other engine is registered"]
    waits = [no.retry_after_ms for no in refusals if no.retry_after_ms > 0]
    only = refusals[0].numbers if len(refusals) == 1 else {}
    return Verdict.reject(
        reason,
        f"{summary}: {'; '.join(texts)}",
        {"candidates": float(len(refusals)), **only},
        retry_after_ms=min(waits, default=0),
    )
