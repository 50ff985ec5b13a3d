"""Move: may this move have a wire in time, and into which of its receivers?

For each receiver, in order: path measured, condition (1), a free slot, and an interval in which
receiver, sender, pair and verifier are free together, soon enough that the move still commits
within its horizon. The order puts what waiting cannot cure before what it can. Of the receivers
that will do, the one where the move is over soonest; where none will, the one that comes closest
explains why. The condition: paper, section 4.1; caps and duplex rule: section 6.3; what verifies
as a resource: section 6.5; in time with a wait: the response time of appendix C, on the moves that
are really under way instead of the worst that could be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from services.admission import explain
from services.admission.calendar import Interval, earliest_begin_s
from services.admission.holds import HoldBook, ended_s, retry_after_ms
from services.admission.paths import PathBook, age_ms
from services.admission.plan import Needs, Wish, in_the_way, plan_wire
from services.admission.policy import Policy
from services.admission.requests import MoveRequest, MoveTarget
from worldline.admissibility.condition import Condition, PathCost, Transfer
from worldline.admissibility.estimate import mean_of
from worldline.admissibility.path_rate import PathRate
from worldline.errors import InvariantBroken
from worldline.ticket import MovePurpose
from worldline.verdict import RejectReason, Verdict

#: How much of what a move is charged above what it is expected to take its wires are booked for.
#: Booked for all of it they stand idle, and others are told no for nothing; booked for none of it
#: half of all moves overrun, and those behind them are withdrawn after a yes. What is promised is
#: charged in full either way.
BOOKED_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class MoveDecision:
    """The verdict, the receiver that it is about, and, when admitted, the plan."""

    verdict: Verdict
    target: MoveTarget
    wire: Interval
    #: Charged, from the grant of the wire until the commit.
    move_ms: float
    #: Expected, on the wire and in verification.
    transfer_ms: float
    #: Expected, the whole of it.
    expected_ms: float
    #: What its bytes arrive at, and must be digested at.
    rate_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class _Option:
    """One receiver, weighed. `reason` is None where it will do."""

    target: MoveTarget
    path: PathRate | None
    wire: Interval
    move_ms: float
    transfer_ms: float
    reason: RejectReason | None = None
    retry_after_ms: int = 0

    @property
    def ends_s(self) -> float:
        """When the move would have committed."""
        return self.wire.begin_s + self.move_ms / 1e3


class MoveJudge:
    """Weighs one request on current holds and estimates; expired holds must be gone."""

    def __init__(
        self, request: MoveRequest, paths: PathBook, holds: HoldBook, policy: Policy, now_s: float
    ) -> None:
        self._request = request
        self._paths = paths
        self._holds = holds
        self._policy = policy
        self._now_s = now_s
        source = request.source_node_id
        self._needs = Needs(source, holds, policy, now_s, bulk=request.bulk)

    def decide(self) -> MoveDecision:
        """The decision. A probe needs no measured path and has no horizon, but never waits."""
        if self._request.purpose is MovePurpose.PROBE:
            option = self._weigh_probe(self._request.targets[0])
        else:
            option = self._soonest() or self._closest()
        if option.reason is None and self._costs_more(option):
            return self._decision(option, RejectReason.SAVES_TOO_LITTLE)
        return self._decision(option, option.reason)

    # --- which receiver ----------------------------------------------------------------------

    def _soonest(self) -> _Option | None:
        """The receiver where the move is over soonest, of equals the nearest; None: nowhere.

        Targets are in the order of nearness, which the measured paths show by themselves. Planned
        in the order of what the move itself takes, which no wait makes shorter: once that alone
        is longer than the best so far, nobody else can be sooner.
        """
        best: _Option | None = None
        admissible = sorted(self._admissible(), key=lambda one: one[:2])
        if not admissible:
            return None
        # Nor does any begin before the sender is free for the shortest of them.
        shortest_s = admissible[0][0] / 1e3
        begin_s = earliest_begin_s((self._needs.sender,), shortest_s, self._now_s)
        for move_ms, _, target in admissible:
            if best is not None and begin_s + move_ms / 1e3 >= best.ends_s:
                break
            option = self._plan(target, self._path(target), move_ms)
            if option.reason is None and (best is None or option.ends_s < best.ends_s):
                best = option
        return best

    def _admissible(self) -> list[tuple[float, int, MoveTarget]]:
        """What condition (1) holds for: what the move is charged, place in the order, where."""
        request, now_s, age_max_ms = self._request, self._now_s, self._policy.path_age_max_ms
        transfer = self._transfer
        # The second clause follows from the first where nothing is rewritten meanwhile.
        frozen = transfer.dirty_rate_bytes_per_s == 0
        found: list[tuple[float, int, MoveTarget]] = []
        for place, target in enumerate(request.targets):
            pair = (request.source_node_id, target.node_id)
            move_ms = self._paths.charged_ms(pair, request.extent_bytes, now_s, age_max_ms)
            if move_ms is None or move_ms >= transfer.horizon_ms:
                continue
            if frozen or self._condition(target).admissible:
                found.append((move_ms, place, target))
        return found

    def _path(self, target: MoveTarget) -> PathRate:
        path = self._paths.get(self._request.source_node_id, target.node_id)
        if path is None:
            raise InvariantBroken(f"the path to {target.node_id} has a charge and no estimate")
        return path

    def _closest(self) -> _Option:
        """None will do: one to measure at once, else the one to ask about again soonest, else the
        nearest.
        """
        options = [self._weigh(target) for target in self._request.targets]
        for option in options:
            if option.reason is RejectReason.PATH_UNMEASURED and self._may_probe(option.target):
                return option
        curable = [option for option in options if option.retry_after_ms > 0]
        return min(curable or options, key=lambda option: option.retry_after_ms)

    def _may_probe(self, target: MoveTarget) -> bool:
        """Whether a probe would find the wire free now."""
        return self._weigh_probe(target).reason is None

    # --- one receiver ------------------------------------------------------------------------

    def _weigh(self, target: MoveTarget) -> _Option:
        request, policy, now_s = self._request, self._policy, self._now_s
        path = self._paths.get(request.source_node_id, target.node_id)
        nothing = Interval(now_s, now_s)
        if path is None or age_ms(path, now_s) > policy.path_age_max_ms:
            retry_ms = self._probe_retry_ms(target)
            unmeasured = RejectReason.PATH_UNMEASURED
            return _Option(target, path, nothing, 0.0, 0.0, unmeasured, retry_ms)
        condition = self._condition(target)
        move_ms = condition.t_migrate_ms
        if not condition.admissible:
            reason, retry_ms = self._refused(condition, path, target)
            return _Option(target, path, nothing, move_ms, 0.0, reason, retry_ms)
        return self._plan(target, path, move_ms)

    def _condition(self, target: MoveTarget) -> Condition:
        pair = (self._request.source_node_id, target.node_id)
        cost = self._paths.charged_cost(pair, self._now_s, self._policy.path_age_max_ms)
        if cost is None:
            raise InvariantBroken(f"the path to {target.node_id} has no cost")
        return Condition(self._transfer, cost)

    @cached_property
    def _transfer(self) -> Transfer:
        contract = self._request.contract
        if contract is None:
            raise InvariantBroken(f"move {self._request.move_id} has no contract")
        return Transfer(
            state_bytes=self._request.extent_bytes,
            horizon_ms=contract.horizon_ms,
            dirty_rate_bytes_per_s=self._request.dirty_rate_bytes_per_s,
        )

    def _refused(
        self, condition: Condition, path: PathRate, target: MoveTarget
    ) -> tuple[RejectReason, int]:
        """Condition (1) on charged values does not hold: why, and when it may."""
        in_doubt = Condition(condition.transfer, path.mean_cost).admissible
        pair = (self._request.source_node_id, target.node_id)
        suspected = self._paths.suspected(pair, self._now_s) > 1.0
        # An estimate that has begun anew stands on two moves, and rejects bring no third.
        anew = path.pace.learned < path.pace.samples
        if (in_doubt or anew) and (suspected or not path.settled):
            # The next measurements may settle it.
            return RejectReason.PATH_UNMEASURED, self._policy.probe_retry_ms
        # Rejected moves teach nothing, so an estimate that alone stands in the way is believed
        # only until it has aged out and is measured again.
        left_ms = self._policy.path_age_max_ms - age_ms(path, self._now_s)
        # What moves take around their wires, probes do not measure: that ages out alone.
        wire_alone = PathCost(path.mean_rate_bytes_per_s, mean_of(path.wire_setup))
        curable = in_doubt or Condition(condition.transfer, wire_alone).admissible
        retry_ms = max(1, round(left_ms)) if curable else 0
        if not condition.in_time:
            return RejectReason.HORIZON_TOO_SHORT, retry_ms
        return RejectReason.BANDWIDTH_TOO_LOW, retry_ms

    def _plan(self, target: MoveTarget, path: PathRate, move_ms: float) -> _Option:
        """Slot and wire; the move commits strictly within its horizon, as condition (1) wants."""
        request, now_s = self._request, self._now_s
        transfer_ms = path.expected_transfer_ms(request.extent_bytes)
        expected_ms = path.mean_cost.t_migrate_ms(request.extent_bytes)
        wish = self._wish(target, path, expected_ms + BOOKED_SHARE * (move_ms - expected_ms))
        wanted = self._needs.of(wish)
        wire = plan_wire(wanted, wish.length_s, now_s)
        option = _Option(target, path, wire, move_ms, transfer_ms)
        full = self._slots_full(option)
        if full is not None:
            return full
        may_wait_s = (request.deadline_ms(move_ms) - move_ms) / 1e3
        waits_s = wire.begin_s - now_s
        if waits_s >= may_wait_s:
            reason = in_the_way(wanted, wish.length_s, now_s, now_s + may_wait_s)
            return replace(
                option,
                reason=reason,
                retry_after_ms=retry_after_ms(wire.begin_s - may_wait_s, now_s),
            )
        for (reason, resource), held in zip(
            wanted,
            (self._holds.into(target.node_id), self._holds.out_of(request.source_node_id)),
            strict=False,
        ):
            if len(resource.booked) >= self._policy.queue_max:
                return replace(
                    option,
                    reason=reason,
                    retry_after_ms=retry_after_ms(ended_s(held, now_s), now_s),
                )
        return option

    def _wish(self, target: MoveTarget, path: PathRate | None, length_ms: float) -> Wish:
        return Wish(target, length_ms / 1e3, self._rate(path))

    def _rate(self, path: PathRate | None) -> float:
        unmeasured = self._policy.unmeasured_rate_bytes_per_s
        return unmeasured if path is None else path.mean_rate_bytes_per_s

    def _slots_full(self, option: _Option) -> _Option | None:
        holding = self._holds.on_slots(option.target)
        if holding < option.target.slots_free:
            return None
        into = self._holds.into(option.target.node_id)
        retry_ms = (
            retry_after_ms(ended_s(into, self._now_s), self._now_s)
            if into
            else self._policy.device_retry_ms
        )
        return replace(option, reason=RejectReason.TARGET_FULL, retry_after_ms=retry_ms)

    def _weigh_probe(self, target: MoveTarget) -> _Option:
        request, policy, now_s = self._request, self._policy, self._now_s
        path = self._paths.get(request.source_node_id, target.node_id)
        transfer_ms = (
            request.extent_bytes / policy.unmeasured_rate_bytes_per_s * 1e3
            if path is None
            else path.expected_transfer_ms(request.extent_bytes)
        )
        wish = self._wish(target, path, transfer_ms)
        wanted = self._needs.of(wish)
        wire = plan_wire(wanted, wish.length_s, now_s)
        option = _Option(target, path, wire, transfer_ms, transfer_ms)
        full = self._slots_full(option)
        if full is not None or wire.begin_s <= now_s:
            return full or option
        reason = in_the_way(wanted, wish.length_s, now_s, now_s)
        return replace(option, reason=reason, retry_after_ms=retry_after_ms(wire.begin_s, now_s))

    def _probe_retry_ms(self, target: MoveTarget) -> int:
        """When a probe that already runs on this path should be over, else what one takes."""
        probing = [
            hold
            for hold in self._holds.between(self._request.source_node_id, target.node_id)
            if hold.claims.purpose is MovePurpose.PROBE
        ]
        if not probing:
            return self._policy.probe_retry_ms
        return retry_after_ms(ended_s(probing, self._now_s), self._now_s)

    # --- the answer --------------------------------------------------------------------------

    def _costs_more(self, option: _Option) -> bool:
        """Hysteresis: what a move is said to save must exceed its cost, with a margin."""
        saves_ms = self._request.saves_ms
        return 0 < saves_ms <= option.move_ms * (1 + self._policy.hysteresis)

    def _decision(self, option: _Option, reason: RejectReason | None) -> MoveDecision:
        # Charged nothing: its path is unmeasured, or was measured too long ago to be believed.
        judged = self._request.contract is not None and option.move_ms > 0
        condition = self._condition(option.target) if judged and option.path is not None else None
        facts = explain.Facts(
            request=self._request,
            target=option.target,
            path=option.path,
            condition=condition,
            wait_ms=(option.wire.begin_s - self._now_s) * 1e3,
            move_ms=option.move_ms,
        )
        numbers = explain.numbers(facts, self._holds, self._policy, self._now_s)
        if reason is None:
            verdict = Verdict.admit(explain.admitted(facts, numbers), numbers)
        else:
            text = explain.rejected(reason, facts, numbers)
            retry_ms = option.retry_after_ms if reason is option.reason else 0
            verdict = Verdict.reject(reason, text, numbers, retry_after_ms=retry_ms)
        path, transfer_ms = option.path, option.transfer_ms
        expected_ms = (
            transfer_ms if path is None else path.mean_cost.t_migrate_ms(self._request.extent_bytes)
        )
        return MoveDecision(
            verdict,
            option.target,
            option.wire,
            option.move_ms,
            transfer_ms,
            expected_ms,
            self._rate(path),
        )
