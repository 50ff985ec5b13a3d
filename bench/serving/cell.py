"""Cell: some devices for some minutes, one interactive session and one bulk session on each."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field

from bench.serving.device import Device, Timing
from bench.serving.policies.table import Arm
from bench.serving.run import play
from bench.serving.session import Ledger, Session, Terms
from services.engine.schedule.ladder import Ladder
from worldline.contract import ServiceClass

#: Denoising steps of Matrix-Game-2 at full quality; a context pass of equal cost follows
#: (section 3.1).
FULL_STEPS = 3


@dataclass(frozen=True, slots=True)
class Cell:
    """What is given. The defaults are Table 4's: 8 devices, 10 minutes, a 600 ms contract.

    All devices are alike and bound to their own NUMA node (the paper's are split 4 + 4).
    """

    period_s: float = 0.6
    #: The floor of the interactive contract ("honor the 2-step quality floor").
    floor_steps: int = 2
    #: Blocks of the bulk job on each device; None: it never ends. 960 a cell in Table 4.
    bulk_blocks: int | None = 120
    #: Denoising steps of a bulk block, which every arm generates alike. Not in the paper; chosen by
    #: the 600 ms rung, whose 0.79 blocks/s are 1.58 quanta/s, about one a period, if a block has
    #: two quanta.
    bulk_steps: int = 1
    devices: int = 8
    length_s: float = 600.0
    timing: Timing = field(default_factory=Timing)

    def sessions(self, device: Device, arm: Arm) -> list[Session]:
        """The sessions of one device, the interactive one first."""
        interactive = Terms(
            "interactive",
            ServiceClass.C1_INTERACTIVE,
            Ladder(FULL_STEPS, self.floor_steps),
            self.period_s,
        )
        ladder = Ladder(self.bulk_steps, self.bulk_steps)
        bulk = Terms("bulk", ServiceClass.C3_BULK, ladder, blocks=self.bulk_blocks)
        return [
            Session(interactive, device.interactive_s, arm.grid(self.period_s)),
            Session(bulk, device.bulk_s),
        ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one cell, all its devices together."""

    blocks: int
    missed: int
    skipped: int
    degraded: int
    #: Of blocks with a deadline: from release to done, and the most missed in a row on a device.
    response_p50_s: float
    response_p99_s: float
    missed_in_a_row: int
    bulk_blocks: int
    bulk_per_device_s: float

    @property
    def missed_share(self) -> float:
        """Of all interactive blocks."""
        return self.missed / self.blocks if self.blocks else 0.0

    @property
    def degraded_share(self) -> float:
        """Of all interactive blocks."""
        return self.degraded / self.blocks if self.blocks else 0.0

    def to_json(self) -> dict[str, object]:
        """For machines."""
        shares = {"missed_share": self.missed_share, "degraded_share": self.degraded_share}
        return {**asdict(self), **shares}


def play_cell(cell: Cell, arm: Arm, seed: int) -> Outcome:
    """One trial: fresh devices, each with its own speed and stalls, the same for every arm."""
    interactive: list[Ledger] = []
    bulk_blocks = 0
    for number in range(cell.devices):
        device = Device(cell.timing, seed, number)
        first, second = cell.sessions(device, arm)
        play(device, [first, second], arm.make(), cell.length_s)
        interactive.append(first.ledger)
        bulk_blocks += second.ledger.blocks
    responses = sorted(response for each in interactive for response in each.response_s)
    return Outcome(
        blocks=sum(each.blocks for each in interactive),
        missed=sum(each.missed for each in interactive),
        skipped=sum(each.skipped for each in interactive),
        degraded=sum(each.degraded for each in interactive),
        response_p50_s=statistics.median(responses) if responses else 0.0,
        response_p99_s=responses[int(0.99 * (len(responses) - 1))] if responses else 0.0,
        missed_in_a_row=max((each.longest_run for each in interactive), default=0),
        bulk_blocks=bulk_blocks,
        bulk_per_device_s=bulk_blocks / cell.devices / cell.length_s,
    )
