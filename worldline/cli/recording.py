"""Recording: record a session as a run, re-execute one, compare two."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from worldline.cli.common import JsonOption, PlacementOption, connected, run
from worldline.cli.output import console, counted, err_console, hex_digest, jsonable, print_json
from worldline.contract import Contract, DeterminismTier, ServiceClass
from worldline.errors import InvalidInput
from worldline.recording import (
    Difference,
    Replayed,
    ReplayWish,
    Run,
    RunBlock,
    compare_runs,
    read_run,
    record,
    replay,
)
from worldline.recording.directory import check_free
from worldline.recording.recorder import OnBlock
from worldline.sdk import Action

#: Exit status where the same inputs gave other bytes, as for every command; and where two runs
#: are not of the same inputs, so that nothing follows from their bytes.
BYTES_DIFFERED, NOT_COMPARABLE = 6, 1
_TIERS = {"t0": DeterminismTier.T0_BITWISE, "t1": DeterminismTier.T1_SCHEDULE_STABLE}
#: As `worldline open`: long enough that moves are let.
_HORIZON_MS = 5_000.0

#: Options of `record` that choose a new session, and so say nothing of one that is there.
_OF_A_NEW_SESSION = ("preset", "seed", "node")

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run.")]


def record_command(
    context: typer.Context,
    out: Annotated[
        Path, typer.Option(help="Directory to write the run into: a new one, or an empty one.")
    ],
    session_id: Annotated[
        str,
        typer.Argument(
            metavar="SESSION", help="Session to play on and record; default: a new one."
        ),
    ] = "",
    preset: Annotated[str, typer.Option(help="Of a new session: tiny, small or mg2.")] = "tiny",
    seed: Annotated[
        int, typer.Option(help="Of a new session: seed of its first frame and noise.")
    ] = 0,
    node: Annotated[str, typer.Option(help="Of a new session: its node; default: any.")] = "",
    blocks: Annotated[int, typer.Option(min=1, help="How many blocks to play.")] = 8,
    keys: Annotated[
        str,
        typer.Option(
            help="Keys to hold, of W, S, A, D. Several, separated by commas, are taken in turn, "
            "one a block: W,WA,,S"
        ),
    ] = "W",
    mouse_dx: Annotated[float, typer.Option(help="Mouse motion right, -1 to 1.")] = 0.0,
    mouse_dy: Annotated[float, typer.Option(help="Mouse motion down, -1 to 1.")] = 0.0,
    placement: PlacementOption = "",
    as_json: JsonOption = False,
) -> None:
    """Play a session and record it: how it began, each action, and digests of each block.

    `worldline replay RUN` re-executes it, `worldline diff RUN RUN` compares two.

    A new session is closed at the end. One that you name is played on from
    where it stands: its state now is the run's snapshot. Keep a session there to
    replay from, for example a fork that nobody plays.
    """

    async def work() -> int:
        if session_id:
            _check_of_no_new_session(context)
        turns = [Action.keys(each, mouse_dx, mouse_dy) for each in keys.split(",")]
        check_free(out)
        async with connected(placement) as client:
            if session_id:
                session = await client.session(session_id)
            else:
                contract = Contract(ServiceClass.C1_INTERACTIVE, _HORIZON_MS)
                session = await client.open(preset, seed=seed, contract=contract, node=node)
            try:
                made = await record(session, _in_turn(turns, blocks), out, _progress(blocks))
            finally:
                if not session_id:
                    await session.close()
        if as_json:
            print_json(_summary(made, out))
        else:
            console.print(f"recorded {_told(made)} in {out}", markup=False)
        return 0

    run(work)


def replay_command(
    path: RunArgument,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the run that comes of it here: a new directory, or an empty one."),
    ] = None,
    node: Annotated[str, typer.Option(help="Node to replay on; default: one that is equal.")] = "",
    snapshot: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="SESSION",
            help="A session that stands where the run began; needed where that is not block 0. It "
            "is played on, and kept.",
        ),
    ] = "",
    tier: Annotated[
        str,
        typer.Option(help="t0: only on an engine equal to the run's. t1: on any of this world."),
    ] = "t0",
    placement: PlacementOption = "",
    as_json: JsonOption = False,
) -> None:
    """Re-execute a recorded run as a C4 session and compare it block by block.

    Exit status 6 when any block's bytes differ; the first one is named, with leaf
    and granule.
    """

    async def work() -> int:
        recorded = _read(path)
        if tier not in _TIERS:
            raise InvalidInput(f"--tier must be t0 or t1; got {tier!r}", field="--tier")
        wish = ReplayWish(node, snapshot, _TIERS[tier])
        say = _progress(len(recorded.blocks))
        async with connected(placement) as client:
            made = await replay(client, recorded, wish, out, lambda block, _: say(block))
        if as_json:
            print_json(_replayed_json(made, path, out))
        else:
            _print_replayed(made)
        return _status(made.difference)

    run(work)


def diff_command(
    one: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run.")],
    other: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of another.")],
    as_json: JsonOption = False,
) -> None:
    """Compare two runs: the first block, leaf and granule in which they differ.

    Exit status 0 when they are equal, 6 when the same inputs gave other bytes, 1
    when they are not of the same inputs (another world, another action, one is
    shorter).
    """

    async def work() -> int:
        first, second = _read(one), _read(other)
        found = compare_runs(first, second)
        if as_json:
            print_json(
                {"one": str(one), "other": str(other), "equal": found is None}
                | _difference_json(found)
            )
        elif found is None:
            console.print(f"equal: {_told(first)}, every byte of the state and the frames")
        else:
            console.print(f"{found.kind}: {found.message}", markup=False, highlight=False)
        return _status(found)

    run(work)


def _check_of_no_new_session(context: typer.Context) -> None:
    for name in _OF_A_NEW_SESSION:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise InvalidInput(
                f"--{name} chooses a new session, and one is named that is there: leave out either",
                field=f"--{name}",
            )


def _read(path: Path) -> Run:
    found = read_run(path)
    if found.torn_bytes:
        err_console.print(
            f"{path}: the last line is torn ({found.torn_bytes} bytes) and left out: whoever "
            f"wrote it ended early, behind {len(found.blocks)} blocks",
            markup=False,
            highlight=False,
        )
    return found


def _in_turn(turns: list[Action], count: int) -> Iterator[Action]:
    def again() -> Iterator[Action]:
        while True:
            yield from turns

    return islice(again(), count)


def _progress(count: int) -> OnBlock:
    """Says on stderr how far it is, now and then."""
    step = max(1, count // 10)
    seen = 0

    def say(block: RunBlock) -> None:
        nonlocal seen
        seen += 1
        if seen % step == 0 or seen == count:
            err_console.print(
                f"block {block.block_index:>5}  {seen}/{count}  state "
                f"{hex_digest(block.digests.whole)}",
                highlight=False,
            )

    return say


def _told(made: Run) -> str:
    header, count = made.header, len(made.blocks)
    return (
        f"{counted(count, 'block')} of {header.world.preset}, seed "
        f"{header.world.seed}, from block {header.block_index} on"
    )


def _summary(made: Run, out: Path | None) -> dict[str, Any]:
    return {
        "run": None if out is None else str(out),
        "session_id": made.header.session_id,
        "preset": made.header.world.preset,
        "seed": made.header.world.seed,
        "block_index": made.header.block_index,
        "blocks": len(made.blocks),
        "state_digest": hex_digest(made.blocks[-1].digests.whole) if made.blocks else None,
        "granule_bytes": made.header.digests.granule_bytes,
        "fingerprint": made.header.fingerprint.hash.hex(),
    }


def _replayed_json(made: Replayed, path: Path, out: Path | None) -> dict[str, Any]:
    return {
        "replayed": str(path),
        "equal": made.difference is None,
        "blocks_differing": made.blocks_differing,
        **_difference_json(made.difference),
        **_summary(made.run, out),
    }


def _difference_json(found: Difference | None) -> dict[str, Any]:
    if found is None:
        return {"difference": None}
    return {"difference": {**jsonable(found), "kind": found.kind.value}}


def _print_replayed(made: Replayed) -> None:
    if made.difference is None:
        console.print(f"equal: {_told(made.run)} replayed, every byte of the state and the frames")
        return
    console.print(f"{made.difference.kind}: {made.difference.message}", markup=False)
    count = len(made.run.blocks)
    console.print(f"{made.blocks_differing} of {count} blocks differ", markup=False)


def _status(found: Difference | None) -> int:
    if found is None:
        return 0
    return BYTES_DIFFERED if found.of_bytes else NOT_COMPARABLE
