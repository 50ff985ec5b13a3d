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

import math
from collections.abc import Sequence
from typing import NamedTuple

from services.admission import explain
from services.admission.calendar import Interval, earliest_begin_s
from services.admission.holds import HoldBook, ended_s, retry_after_ms
from services.admission.paths import Charged, PathBook, age_ms
from services.admission.plan import Needs, Wish, in_the_way, plan_wire
from services.admission.policy import Policy
from services.admission.requests import MoveRequest, MoveTarget
from worldline.admissibility.condition import Condition, Transfer, t_migrate_ms
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


class MoveDecision(NamedTuple):
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


class _Option(NamedTuple):
    """One receiver, weighed. `reason` is None where it will do."""

    target: MoveTarget
    path: PathRate | None
    #: None where the path is unmeasured, or was too long ago to be believed.
    charged: Charged | None
    wire: Interval
    #: Charged; 0 where nothing is.
    move_ms: float
    #: Expected: on the wire and in verification, and the whole of it.
    transfer_ms: float
    expected_ms: float
    #: Expected, or least, where the path was never measured.
    rate_bytes_per_s: float
    reason: RejectReason | None = None
    retry_after_ms: int = 0

    @property
    def ends_s(self) -> float:
        """When the move would have committed."""
        return self.wire.begin_s + self.move_ms / 1e3

    def refused(self, reason: RejectReason, retry_after_ms: int) -> _Option:
        """The same, which will not do."""
        return self._replace(reason=reason, retry_after_ms=retry_after_ms)


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
        source, contract = request.source_node_id, request.contract
        self._needs = Needs(source, holds, policy, now_s, bulk=request.bulk)
        self._terms = (
            None
            if contract is None
            else Transfer(
                state_bytes=request.extent_bytes,
                horizon_ms=contract.horizon_ms,
                dirty_rate_bytes_per_s=request.dirty_rate_bytes_per_s,
            )
        )

    def decide(self) -> MoveDecision:
        """The decision. A probe needs no measured path and has no horizon, but never waits."""
        if self._request.purpose is MovePurpose.PROBE:
            option = self._weigh_probe(self._request.targets[0])
            if self._request.contract is not None:
                charged = self._charged([option.target])
                option = option._replace(charged=charged.get(option.target.node_id))
        else:
            option = self._best()
        if option.reason is None and self._costs_more(option):
            return self._decision(option, RejectReason.SAVES_TOO_LITTLE)
        return self._decision(option, option.reason)

    @property
    def _transfer(self) -> Transfer:
        if self._terms is None:
            raise InvariantBroken(f"move {self._request.move_id} has no contract")
        return self._terms

    # --- which receiver ----------------------------------------------------------------------

    def _best(self) -> _Option:
        """The receiver that will do and where the move is over soonest; none: the closest."""
        charged = self._charged(self._request.targets)
        plans = self._plans(charged)
        soonest: _Option | None = None
        for option in plans.values():
            if option.reason is None and (soonest is None or option.ends_s < soonest.ends_s):
                soonest = option
        return soonest or self._closest(charged, plans)

    def _plans(self, charged: dict[str, Charged]) -> dict[int, _Option]:
        """Of every receiver that the move may be over soonest at, by its place, if any will do; of
        equals the nearest first.

        Targets are in the order of nearness, which the measured paths show by themselves. Planned
        in the order of what the move itself takes, which no wait makes shorter: once that alone
        is longer than the best so far, nobody else can be sooner.
        """
        targets, transfer = self._request.targets, self._transfer
        horizon_ms, rate_min = transfer.horizon_ms, transfer.required_rate_bytes_per_s
        admissible = sorted(
            (one.move_ms, place)
            for place, target in enumerate(targets)
            if (one := charged.get(target.node_id)) is not None
            and one.move_ms < horizon_ms
            and one.rate_bytes_per_s >= rate_min
        )
        if not admissible:
            return {}
        # Nor does any begin before the sender is free for the shortest of them.
        shortest_s = admissible[0][0] / 1e3
        begin_s = earliest_begin_s((self._needs.sender,), shortest_s, self._now_s)
        soonest_s = math.inf
        plans: dict[int, _Option] = {}
        for move_ms, place in admissible:
            if begin_s + move_ms / 1e3 >= soonest_s:
                break
            target = targets[place]
            plans[place] = option = self._plan(target, charged[target.node_id])
            if option.reason is None:
                soonest_s = min(soonest_s, option.ends_s)
        return plans

    def _closest(self, charged: dict[str, Charged], plans: dict[int, _Option]) -> _Option:
        """None will do: one to measure at once, else the one to ask about again soonest, else the
        nearest.
        """
        targets = self._request.targets
        # While the sender has its wire in use nothing is measured from there, whoever receives.
        idle = earliest_begin_s((self._needs.sender,), 0.0, self._now_s) <= self._now_s
        waits: list[tuple[int, int]] = []
        for place, target in enumerate(targets):
            planned = plans.get(place)
            if planned is not None:
                waits.append((planned.retry_after_ms, place))
                continue
            reason, retry_ms = self._why_not(target, charged.get(target.node_id))
            if idle and reason is RejectReason.PATH_UNMEASURED and self._may_probe(target):
                return self._refused(target, charged)
            waits.append((retry_ms, place))
        _, place = min([one for one in waits if one[0] > 0] or waits)
        return plans.get(place) or self._refused(targets[place], charged)

    def _may_probe(self, target: MoveTarget) -> bool:
        """Whether a probe would find the wire free now."""
        return self._weigh_probe(target).reason is None

    # --- one receiver ------------------------------------------------------------------------

    def _charged(self, targets: Sequence[MoveTarget]) -> dict[str, Charged]:
        return self._paths.charged(
            self._request.source_node_id,
            [target.node_id for target in targets],
            self._request.extent_bytes,
            self._now_s,
            self._policy.path_age_max_ms,
        )

    def _path(self, target: MoveTarget) -> PathRate:
        path = self._paths.get(self._request.source_node_id, target.node_id)
        if path is None:
            raise InvariantBroken(f"the path to {target.node_id} has a charge and no estimate")
        return path

    def _refused(self, target: MoveTarget, charges: dict[str, Charged]) -> _Option:
        """One that will not do whoever else moves."""
        charged = charges.get(target.node_id)
        reason, retry_ms = self._why_not(target, charged)
        path = self._paths.get(self._request.source_node_id, target.node_id)
        move_ms = 0.0 if charged is None else charged.move_ms
        nothing = Interval(self._now_s, self._now_s)
        rate = self._rate(path)
        return _Option(target, path, charged, nothing, move_ms, 0.0, 0.0, rate, reason, retry_ms)

    def _why_not(self, target: MoveTarget, charged: Charged | None) -> tuple[RejectReason, int]:
        """Condition (1) is not known to hold: why, and when it may."""
        if charged is None:
            return RejectReason.PATH_UNMEASURED, self._probe_retry_ms(target)
        return self._why_inadmissible(target, charged)

    def _why_inadmissible(self, target: MoveTarget, charged: Charged) -> tuple[RejectReason, int]:
        transfer, path = self._transfer, self._path(target)
        mean = path.mean_cost
        in_doubt = transfer.admissible(mean.rate_bytes_per_s, mean.setup_ms)
        pair = (self._request.source_node_id, target.node_id)
        # An estimate that has begun anew stands on two moves, and rejects bring no third.
        anew = path.pace.learned < path.pace.samples
        if (in_doubt or anew) and (
            not path.settled or self._paths.suspected(pair, self._now_s) > 1.0
        ):
            # The next measurements may settle it.
            return RejectReason.PATH_UNMEASURED, self._policy.probe_retry_ms
        # Rejected moves teach nothing, so an estimate that alone stands in the way is believed
        # only until it has aged out and is measured again.
        left_ms = self._policy.path_age_max_ms - age_ms(path, self._now_s)
        # What moves take around their wires, probes do not measure: that ages out alone.
        wire_alone_ms = mean_of(path.wire_setup)
        curable = in_doubt or transfer.admissible(mean.rate_bytes_per_s, wire_alone_ms)
        retry_ms = max(1, round(left_ms)) if curable else 0
        if charged.move_ms >= transfer.horizon_ms:
            return RejectReason.HORIZON_TOO_SHORT, retry_ms
        return RejectReason.BANDWIDTH_TOO_LOW, retry_ms

    def _plan(self, target: MoveTarget, charged: Charged) -> _Option:
        """Slot and wire; the move commits strictly within its horizon, as condition (1) wants."""
        request, policy, now_s = self._request, self._policy, self._now_s
        path, move_ms = self._path(target), charged.move_ms
        state_bytes, rate = request.extent_bytes, path.mean_rate_bytes_per_s
        transfer_ms = path.expected_transfer_ms(state_bytes)
        expected_ms = t_migrate_ms(state_bytes, rate, path.mean_setup_ms)
        length_s = (expected_ms + BOOKED_SHARE * (move_ms - expected_ms)) / 1e3
        wanted = self._needs.of(Wish(target, length_s, rate))
        wire = plan_wire(wanted, length_s, now_s)
        option = _Option(target, path, charged, wire, move_ms, transfer_ms, expected_ms, rate)
        full = self._slots_full(option)
        if full is not None:
            return full
        may_wait_s = (request.deadline_ms(move_ms) - move_ms) / 1e3
        if wire.begin_s - now_s >= may_wait_s:
            reason = in_the_way(wanted, length_s, now_s, now_s + may_wait_s)
            return option.refused(reason, retry_after_ms(wire.begin_s - may_wait_s, now_s))
        (into_reason, into), (out_reason, out) = wanted[:2]
        if into.booked >= policy.queue_max:
            held = self._holds.into(target.node_id)
            return option.refused(into_reason, retry_after_ms(ended_s(held, now_s), now_s))
        if out.booked >= policy.queue_max:
            held = self._holds.out_of(request.source_node_id)
            return option.refused(out_reason, retry_after_ms(ended_s(held, now_s), now_s))
        return option

    def _rate(self, path: PathRate | None) -> float:
        unmeasured = self._policy.unmeasured_rate_bytes_per_s
        return unmeasured if path is None else path.mean_rate_bytes_per_s

    def _slots_full(self, option: _Option) -> _Option | None:
        if self._holds.on_slots(option.target) < option.target.slots_free:
            return None
        into, now_s = self._holds.into(option.target.node_id), self._now_s
        retry_ms = (
            retry_after_ms(ended_s(into, now_s), now_s) if into else self._policy.device_retry_ms
        )
        return option.refused(RejectReason.TARGET_FULL, retry_ms)

    def _weigh_probe(self, target: MoveTarget) -> _Option:
        request, policy, now_s = self._request, self._policy, self._now_s
        path = self._paths.get(request.source_node_id, target.node_id)
        transfer_ms = (
            request.extent_bytes / policy.unmeasured_rate_bytes_per_s * 1e3
            if path is None
            else path.expected_transfer_ms(request.extent_bytes)
        )
        length_s, rate = transfer_ms / 1e3, self._rate(path)
        wanted = self._needs.of(Wish(target, length_s, rate))
        wire = plan_wire(wanted, length_s, now_s)
        expected_ms = transfer_ms if path is None else path.expected_move_ms(request.extent_bytes)
        option = _Option(target, path, None, wire, transfer_ms, transfer_ms, expected_ms, rate)
        full = self._slots_full(option)
        if full is not None or wire.begin_s <= now_s:
            return full or option
        reason = in_the_way(wanted, length_s, now_s, now_s)
        return option.refused(reason, retry_after_ms(wire.begin_s, now_s))

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
        request, path, charged = self._request, option.path, option.charged
        facts = explain.Facts(
            request=request,
            target=option.target,
            path=path,
            condition=None if charged is None else Condition(self._transfer, charged.cost),
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
        return MoveDecision(
            verdict,
            option.target,
            option.wire,
            option.move_ms,
            option.transfer_ms,
            option.expected_ms,
            option.rate_bytes_per_s,
        )
