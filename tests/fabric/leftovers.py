"""Leftovers: what services hold after everything has ended that they did not hold before."""

from __future__ import annotations

from tests.fabric.services import Census, Services
from tests.oracles import SLACK, until

#: Releases and ends of streams that follow the last outcome are done within this.
_SETTLE_S = 15.0


async def left_behind(services: Services, baseline: Census) -> list[str]:
    """What is above the baseline, in every process, after it had time to settle; empty: nothing."""

    async def above() -> list[str]:
        now = await services.census()
        return [
            f"{name}.{what}: {before} before, {now[name].get(what, 0)} now"
            for name, counts in baseline.items()
            for what, before in counts.items()
            if now[name].get(what, 0) > before + SLACK.get(what, 0)
        ]

    try:
        await until(above, _SETTLE_S)
    except AssertionError as error:
        return str(error).split("; ")
    return []
