"""Fork: branch a live session."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from worldline.cli.common import (
    JsonOption,
    PlacementOption,
    SessionArgument,
    TimeoutOption,
    connected,
    run,
)
from worldline.cli.output import console, print_json, print_table
from worldline.cli.play import CLASSES, CLASSES_HELP, chosen
from worldline.contract import Contract
from worldline.sdk import SessionInfo


def fork(
    session_id: SessionArgument,
    count: Annotated[int, typer.Option(help="How many branches: 1 to 64.")] = 1,
    same_noise: Annotated[
        bool,
        typer.Option(
            "--same-noise",
            help="Branches draw what the session draws: equal actions, equal blocks. Default: "
            "each draws noise of its own, split off the session's.",
        ),
    ] = False,
    first_branch: Annotated[
        int | None,
        typer.Option(
            help="Number of the first branch: the same state and number give the same branch "
            "again. Default: after those of earlier forks."
        ),
    ] = None,
    service_class: Annotated[
        str,
        typer.Option("--class", help=f"Of the branches: {CLASSES_HELP}. Default: the session's."),
    ] = "",
    period_ms: Annotated[
        float | None, typer.Option(help="Of the branches; 0: the client paces. Default: as above.")
    ] = None,
    cohort: Annotated[
        str, typer.Option(help="Class c2b: branches of this name advance block by block.")
    ] = "",
    timeout_s: TimeoutOption = 120.0,
    placement: PlacementOption = "",
    as_json: JsonOption = False,
) -> None:
    """Branch a live session where it is: new sessions with copies of its state.

    It plays on from the boundary at which it was copied, and so does each
    branch; nobody sees what another writes. A branch is admitted, played, moved
    and closed like any session. All branches are made, or none.

    Exit status 3 when there is no room for all of them.
    """

    async def work() -> int:
        async with connected(placement, timeout_s) as client:
            session = await client.session(session_id)
            branches = await session.fork(
                count,
                contract=_contract(session.info.contract, service_class, period_ms, cohort),
                same_noise=same_noise,
                first_branch=first_branch,
            )
        found = [branch.info for branch in branches]
        if as_json:
            print_json(found)
        else:
            _print(session_id, found)
        return 0

    run(work)


def _contract(
    own: Contract, service_class: str, period_ms: float | None, cohort: str
) -> Contract | None:
    """The session's own where nothing else is asked for; a cohort is not inherited by another
    class.
    """
    if not service_class and period_ms is None and not cohort:
        return None
    named = chosen(service_class, CLASSES, "contract.service_class") if service_class else None
    kept = own.cohort if named in (None, own.service_class) else ""
    return replace(
        own,
        service_class=own.service_class if named is None else named,
        period_ms=own.period_ms if period_ms is None else period_ms,
        cohort=cohort or kept,
    )


def _print(session_id: str, branches: list[SessionInfo]) -> None:
    block = branches[0].forked_from.block_index if branches[0].forked_from is not None else None
    console.print(
        f"session {session_id} branched at block {block}, on {branches[0].node_id}",
        markup=False,
        highlight=False,
    )
    rows = [
        (
            one.session_id,
            "-" if one.forked_from is None else one.forked_from.branch,
            "-" if one.forked_from is None else _noise(same=one.forked_from.same_noise),
            one.contract.service_class.name,
        )
        for one in branches
    ]
    print_table(("SESSION", "BRANCH", "NOISE", "CLASS"), rows)


def _noise(*, same: bool) -> str:
    return "the parent's" if same else "its own"
