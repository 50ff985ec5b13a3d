"""Explain: what a verdict about a move says, in numbers and in a sentence to act on."""

from __future__ import annotations

from typing import NamedTuple

from services.admission.holds import HoldBook
from services.admission.paths import age_ms
from services.admission.policy import Policy
from services.admission.requests import MoveRequest, MoveTarget
from worldline.admissibility.condition import Condition
from worldline.admissibility.path_rate import PathRate
from worldline.errors import InvariantBroken
from worldline.ticket import MovePurpose
from worldline.verdict import RejectReason


class Facts(NamedTuple):
    """What is known of a move and the receiver that the verdict is about.

    `wait_ms` is until its wire is free, `move_ms` what it is charged from then on; both 0 where
    it was refused before they were known.
    """

    request: MoveRequest
    target: MoveTarget
    path: PathRate | None
    condition: Condition | None
    wait_ms: float
    move_ms: float

    @property
    def route(self) -> str:
        """The path in words."""
        return f"the path from {self.request.source_node_id} to {self.target.node_id}"


def numbers(facts: Facts, holds: HoldBook, policy: Policy, now_s: float) -> dict[str, float]:
    """The arithmetic, each quantity with its unit last."""
    request, target, path = facts.request, facts.target, facts.path
    source, receiver = request.source_node_id, target.node_id
    found = {
        "state_bytes": float(request.extent_bytes),
        "path_samples": 0.0,
        "candidates": float(len(request.targets)),
        "moves_into_receiver": float(len(holds.into(receiver))),
        "fan_in_max": float(policy.fan_in_max),
        "moves_out_of_sender": float(len(holds.out_of(source))),
        "fan_out_max": float(policy.fan_out_max),
        "moves_in_opposite_direction": float(len(holds.between(receiver, source))),
        "slots_free": float(max(0, target.slots_free - holds.on_slots(target))),
        "wire_wait_ms": facts.wait_ms,
        "move_ms": facts.move_ms,
    }
    if path is not None:
        found["path_samples"] = float(path.samples)
        found["path_age_ms"] = age_ms(path, now_s)
        if facts.condition is None:
            found["rate_bytes_per_s"] = path.charged_cost.rate_bytes_per_s
        found["rate_mean_bytes_per_s"] = path.mean_rate_bytes_per_s
    if target.digest_rate_bytes_per_s > 0:
        found["digest_rate_bytes_per_s"] = target.digest_rate_bytes_per_s
    if request.saves_ms > 0:
        found["saves_ms"] = request.saves_ms
    if facts.condition is not None:
        found |= facts.condition.numbers()
        found["wire_wait_max_ms"] = max(0.0, found["horizon_ms"] - facts.move_ms)
    return found


def admitted(facts: Facts, found: dict[str, float]) -> str:
    """Why yes."""
    request = facts.request
    if request.purpose is MovePurpose.PROBE:
        return f"{request.extent_bytes} bytes may measure {facts.route}"
    wait = ""
    if facts.wait_ms > 0:
        wait = f"the wire is free in {facts.wait_ms:.1f} ms, then "
    return f"{wait}{_cost_text(found)}, within the horizon of {found['horizon_ms']:g} ms"


def rejected(reason: RejectReason, facts: Facts, found: dict[str, float]) -> str:
    """Why not, and what would help."""
    texts = {
        RejectReason.PATH_UNMEASURED: _unmeasured,
        RejectReason.HORIZON_TOO_SHORT: _too_short,
        RejectReason.BANDWIDTH_TOO_LOW: _too_slow,
        RejectReason.TARGET_FULL: _full,
        RejectReason.RECEIVER_BUSY: _receiver_busy,
        RejectReason.SENDER_BUSY: _sender_busy,
        RejectReason.DUPLEX_PAIR: _duplex,
        RejectReason.VERIFIER_BUSY: _verifier_busy,
        RejectReason.SAVES_TOO_LITTLE: _saves_too_little,
    }
    text = texts.get(reason)
    if text is None:
        raise InvariantBroken(f"{reason.name} is no reason to refuse a move here")
    return text(facts, found)


def _unmeasured(facts: Facts, found: dict[str, float]) -> str:
    if facts.path is None:
        return (
            f"{facts.route} has never been measured, and an advertised speed is not believed; "
            "measure it with a probe and ask again"
        )
    if facts.condition is None:
        return (
            f"{facts.route} was last measured {found['path_age_ms'] / 1e3:.0f} s ago; measure it "
            "with a probe and ask again"
        )
    if facts.path.settled:
        return (
            f"another path of a node of {facts.route} has just been slower than was charged "
            f"({_takes(facts, found)}); measure this one again and ask again"
        )
    return (
        f"{facts.route} has {facts.path.samples} measurements, too few to be sure "
        f"({_takes(facts, found)}); measure it again and ask again"
    )


def _too_short(facts: Facts, found: dict[str, float]) -> str:
    return f"{_takes(facts, found)}; a longer horizon, a smaller state or a faster path would do"


def _too_slow(facts: Facts, found: dict[str, float]) -> str:
    return (
        f"{found['rate_bytes_per_s']:.4g} B/s do not outrun "
        f"{found['required_rate_bytes_per_s']:.4g} B/s, the state within its horizon plus what "
        "generation rewrites meanwhile; freeze the source or take a faster path"
    )


def _full(facts: Facts, found: dict[str, float]) -> str:
    where = facts.target.engine_id or facts.target.node_id
    return (
        f"{where} has {facts.target.slots_free} free slots, and as many moves under way that will "
        "take them"
    )


def _receiver_busy(facts: Facts, found: dict[str, float]) -> str:
    return (
        f"{facts.target.node_id} has {found['moves_into_receiver']:.0f} moves to receive, "
        f"{found['fan_in_max']:.0f} at once; {_late(found)}"
    )


def _sender_busy(facts: Facts, found: dict[str, float]) -> str:
    return (
        f"{facts.request.source_node_id} has {found['moves_out_of_sender']:.0f} moves to send, "
        f"{found['fan_out_max']:.0f} at once; {_late(found)}"
    )


def _duplex(facts: Facts, found: dict[str, float]) -> str:
    return (
        f"a move from {facts.target.node_id} to {facts.request.source_node_id} is under way, and "
        f"of two opposite moves one starves; {_late(found)}"
    )


def _verifier_busy(facts: Facts, found: dict[str, float]) -> str:
    return (
        f"the cores of {facts.target.node_id}'s host digest "
        f"{found['digest_rate_bytes_per_s'] / 1e6:.5g} MB/s and are taken; {_late(found)}"
    )


def _saves_too_little(facts: Facts, found: dict[str, float]) -> str:
    return (
        f"the move costs {found['move_ms']:.1f} ms and saves {found['saves_ms']:.1f} ms; it must "
        "save more than it costs"
    )


def _late(found: dict[str, float]) -> str:
    """Why waiting for it is no way out."""
    if "wire_wait_max_ms" not in found:
        return f"free in {found['wire_wait_ms']:.1f} ms"
    return (
        f"free in {found['wire_wait_ms']:.1f} ms, and the horizon leaves "
        f"{found['wire_wait_max_ms']:.1f} ms to wait"
    )


def _takes(facts: Facts, found: dict[str, float]) -> str:
    if facts.condition is None:
        raise InvariantBroken("a move without a path has no cost")
    relation = "within" if facts.condition.in_time else "not within"
    return f"{_cost_text(found)}, {relation} the horizon of {found['horizon_ms']:g} ms"


def _cost_text(found: dict[str, float]) -> str:
    """Both terms of T_migrate beside their sum, so that a reader can add them up."""
    rate_bytes_per_s = found["rate_bytes_per_s"]
    return (
        f"{found['state_bytes'] / 1e6:.2f} MB: {found['setup_ms']:.1f} ms set-up + "
        f"{found['state_bytes'] / rate_bytes_per_s * 1e3:.1f} ms at "
        f"{rate_bytes_per_s / 1e6:.5g} MB/s = {found['t_migrate_ms']:.1f} ms"
    )
