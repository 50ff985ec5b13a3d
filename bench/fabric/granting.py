"""Granting: the movers' own wire queues, one a node, and the messages between them.

`services.mover.wires` as the movers use it: the source's queue gives the turn out of its node, then
the target's gives the wire, then the flow starts. A message takes no time here; the lag from the
decision until both ends ask is the run's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench.fabric.flow import Flow
from bench.fabric.policies.policy import Terms
from services.mover.wires import Granted, WireAsk, WireDirection, Wires


@dataclass(frozen=True, slots=True)
class Decided:
    """Flows that may start now, and those whose wire would come too late."""

    started: tuple[Flow, ...]
    refused: tuple[Flow, ...]


@dataclass(frozen=True, slots=True)
class _Asking:
    flow: Flow
    terms: Terms
    deadline_s: float

    def ask(self, direction: WireDirection) -> WireAsk:
        outwards = direction is WireDirection.OUT_OF
        return WireAsk(
            wire_id=self.flow.flow_id,
            direction=direction,
            peer_node_id=self.flow.target if outwards else self.flow.source,
            bulk=self.terms.bulk,
            deadline_s=self.deadline_s,
            move_s=self.terms.move_s,
            wire_s=self.terms.wire_s,
        )


class Granting:
    """Who waits for which wire of the cell, and who has it."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self._wires = {node: Wires(node) for node in nodes}
        self._asking: dict[str, _Asking] = {}

    def ask(self, flow: Flow, terms: Terms, deadline_s: float, now_s: float) -> None:
        """Both ends of a move are ready."""
        asking = _Asking(flow, terms, deadline_s)
        self._asking[flow.flow_id] = asking
        self._wires[flow.source].ask(asking.ask(WireDirection.OUT_OF), now_s)

    def end(self, flow: Flow, now_s: float) -> None:
        """Both ends give the wire back; nothing for a flow that never asked."""
        if self._asking.pop(flow.flow_id, None) is not None:
            for node in (flow.source, flow.target):
                self._wires[node].end(flow.flow_id, now_s)

    def next_s(self) -> float:
        """When there is something to decide; infinite where there is nothing."""
        times = (wires.next_decision_s() for wires in self._wires.values())
        return min((at_s for at_s in times if at_s is not None), default=float("inf"))

    def decide(self, now_s: float) -> Decided:
        """All that follows from now on, until no queue has anything more to say."""
        started: list[Flow] = []
        refused: list[Flow] = []
        while self.next_s() <= now_s:
            for node, wires in self._wires.items():
                at_s = wires.next_decision_s()
                if at_s is None or at_s > now_s:
                    continue
                for word in wires.decide(now_s):
                    # Who was refused at its target in this very round is gone at its source.
                    asking = self._asking.get(word.wire_id)
                    if asking is None:
                        continue
                    if not isinstance(word, Granted):
                        self.end(asking.flow, now_s)
                        refused.append(asking.flow)
                    elif node == asking.flow.source:
                        target = self._wires[asking.flow.target]
                        target.ask(asking.ask(WireDirection.INTO), now_s)
                    else:
                        self._wires[asking.flow.source].confirm(word.wire_id, now_s)
                        started.append(asking.flow)
        return Decided(tuple(started), tuple(refused))
