"""An engine whose model ends every block with slow work on a stream of its own (fault 3)."""

from __future__ import annotations

from typing import Any

import torch

from services.engine.main import main as engine_main
from services.engine.model.causal import CausalWorld

#: About a tenth of a second on an H200: longer than a freeze, an order and a push of this state.
SLEEP_CYCLES = 200_000_000


def main() -> None:
    """Entry point."""
    finish = CausalWorld._finish
    streams: dict[torch.device, torch.cuda.Stream] = {}

    def finish_late(self: CausalWorld, state: Any, *rest: Any) -> Any:
        frames = finish(self, state, *rest)
        leaf = state["first_frame"]
        if leaf.device not in streams:
            streams[leaf.device] = torch.cuda.Stream(leaf.device)
        side = streams[leaf.device]
        side.wait_stream(torch.cuda.current_stream(leaf.device))
        with torch.cuda.stream(side):
            torch.cuda._sleep(SLEEP_CYCLES)
            leaf.mul_(1.0 + 2.0**-10)
        leaf.record_stream(side)  # where it is torch's own memory, as when warming up
        return frames

    CausalWorld._finish = finish_late  # type: ignore[method-assign]
    engine_main()
