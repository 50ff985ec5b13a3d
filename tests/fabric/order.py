"""Order: what a driver is told to do, as it crosses into the driver's process."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tests.fabric.cell import ShapedCell
from tests.fabric.namespaces import Fabric, Node, Port


@dataclass(frozen=True, slots=True)
class IncastOrder:
    """K movers into one receiver, so many rounds for each K."""

    fan_ins: tuple[int, ...] = (1, 2, 3)
    rounds: int = 3


@dataclass(frozen=True, slots=True)
class SweepOrder:
    """So many offered moves at each load, 1.0 being what the cell can carry."""

    loads: tuple[float, ...] = (1.0, 1.4, 2.0, 4.0)
    moves: int = 72
    seed: int = 1
    #: On each path, before anything is offered: probes of each size, and moves.
    probe_rounds: int = 3
    warm_rounds: int = 2


@dataclass(frozen=True, slots=True)
class OpenOrder:
    """The same offers as of a sweep, with its capacity, and nobody who decides."""

    loads: tuple[float, ...]
    moves: int
    seed: int
    capacity_per_s: float


Experiment = IncastOrder | SweepOrder | OpenOrder
_KINDS: dict[str, type[Experiment]] = {
    kind.__name__: kind for kind in (IncastOrder, SweepOrder, OpenOrder)
}


@dataclass(frozen=True, slots=True)
class Order:
    """One experiment in one fabric; its services live as long as it does."""

    cell: ShapedCell
    fabric: Fabric
    experiment: Experiment

    def to_json(self) -> dict[str, Any]:
        """Everything, and which experiment it is."""
        return {**asdict(self), "kind": type(self.experiment).__name__}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Order:
        """What `to_json` was made of."""
        cell, fabric, experiment = value["cell"], value["fabric"], value["experiment"]
        tuples: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in experiment.items()
        }
        return cls(
            ShapedCell(**{**cell, "nodes": tuple(cell["nodes"]), "port": Port(**cell["port"])}),
            Fabric(
                {name: Node(**node) for name, node in fabric["nodes"].items()},
                Node(**fabric["driver"]),
                Port(**fabric["port"]),
            ),
            _KINDS[value["kind"]](**tuples),
        )
