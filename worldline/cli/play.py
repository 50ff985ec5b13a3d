"""Play: open a world, watch it, close it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from worldline.cli.common import JsonOption, PlacementOption, SessionArgument, connected, run
from worldline.cli.output import console, hex_digest, print_json, print_json_line
from worldline.cli.strip import Labelled, check_writable, write_strip
from worldline.contract import Contract, DecodeTier, DeterminismTier, ServiceClass
from worldline.errors import InvalidInput
from worldline.sdk import Action, Block

ChoiceT = TypeVar("ChoiceT")

#: As the command line calls them: c1, c2a, ...
CLASSES = {member.name.split("_")[0].lower(): member for member in ServiceClass}
#: The same with what each is: c1 interactive, c2a planner, ...
CLASSES_HELP = ", ".join(member.name.lower().replace("_", " ") for member in ServiceClass)
_TIERS = {member.name.split("_")[0].lower(): member for member in DeterminismTier}
_DECODES = {member.name.lower(): member for member in DecodeTier}


def open_session(
    preset: Annotated[str, typer.Option(help="tiny, small, mg2, or one of --models.")] = "tiny",
    seed: Annotated[int, typer.Option(help="Seed of its first frame and noise.")] = 0,
    node: Annotated[str, typer.Option(help="Node to open it on; default: any.")] = "",
    service_class: Annotated[
        str, typer.Option("--class", help=f"Class of service: {CLASSES_HELP}.")
    ] = "c1",
    horizon_ms: Annotated[float, typer.Option(help="Longest stall in a move.")] = 5_000.0,
    period_ms: Annotated[float, typer.Option(help="Block period; 0: the client paces.")] = 0.0,
    floor: Annotated[
        int,
        typer.Option(
            help="With a period: denoising steps that a block may go down to rather than be late; "
            "0: all, and late."
        ),
    ] = 0,
    degraded_max: Annotated[
        int,
        typer.Option(
            help="With --floor: most blocks in a row of fewer steps than all; 0: no limit."
        ),
    ] = 0,
    cohort: Annotated[
        str, typer.Option(help="Class c2b: sessions of this name advance block by block.")
    ] = "",
    tier: Annotated[str, typer.Option(help=f"Determinism: {', '.join(_TIERS)}.")] = "t0",
    decode: Annotated[str, typer.Option(help=f"Decoding: {', '.join(_DECODES)}.")] = "full",
    drop_allowed: Annotated[
        bool, typer.Option("--tier-drop-allowed", help="Accept T1 where no node is equal.")
    ] = False,
    placement: PlacementOption = "",
    as_json: JsonOption = False,
) -> None:
    """Open a world; prints its session id."""

    async def work() -> int:
        contract = Contract(
            service_class=chosen(service_class, CLASSES, "contract.service_class"),
            horizon_ms=horizon_ms,
            period_ms=period_ms,
            quality_floor_steps=floor,
            determinism_tier=chosen(tier, _TIERS, "contract.determinism_tier"),
            decode_tier=chosen(decode, _DECODES, "contract.decode_tier"),
            tier_drop_allowed=drop_allowed,
            degraded_consecutive_max=degraded_max,
            cohort=cohort,
        )
        async with connected(placement) as client:
            session = await client.open(preset, seed=seed, contract=contract, node=node)
        if as_json:
            print_json(session.info)
        else:
            console.print(session.session_id, soft_wrap=True)
        return 0

    run(work)


def play(
    session_id: SessionArgument,
    blocks: Annotated[int, typer.Option(min=1, help="How many blocks to play.")] = 8,
    keys: Annotated[str, typer.Option(help="Keys to hold, of W, S, A, D.")] = "W",
    mouse_dx: Annotated[float, typer.Option(help="Mouse motion right, -1 to 1.")] = 0.0,
    mouse_dy: Annotated[float, typer.Option(help="Mouse motion down, -1 to 1.")] = 0.0,
    digests: Annotated[bool, typer.Option(help="Ask for the state digest.")] = False,
    png: Annotated[Path | None, typer.Option(help="Write the last frames here.")] = None,
    placement: PlacementOption = "",
    as_json: JsonOption = False,
) -> None:
    """Play a session with held keys; prints each block as it comes.

    Takes the stream over from any other client that plays the session: theirs
    ends.
    """

    async def work() -> int:
        action = Action.keys(keys, mouse_dx, mouse_dy)
        if png is not None:
            check_writable(png, "--png")
        frames: list[Labelled] = []
        async with connected(placement) as client:
            session = await client.session(session_id)
            actions: Iterator[Action] = (action for _ in range(blocks))
            async for block in session.play(actions, digests=digests, frames=png is not None):
                _print_block(block, as_json)
                if len(block.frames):
                    frames.append(Labelled(f"block {block.index}", block.frames[-1]))
        if png is not None:
            write_strip(png, frames)
            if not as_json:
                console.print(f"frames: {png}")
        return 0

    run(work)


def close(
    session_id: SessionArgument,
    placement: PlacementOption = "",
) -> None:
    """End a session's world."""

    async def work() -> int:
        async with connected(placement) as client:
            await (await client.session(session_id)).close()
        return 0

    run(work)


def _print_block(block: Block, as_json: bool) -> None:
    if as_json:
        print_json_line(
            {
                "block_index": block.index,
                "epoch": block.epoch,
                "generate_ms": block.generate_ms,
                "frames_digest": hex_digest(block.frames_digest),
                "state_digest": hex_digest(block.state_digest),
                "steps": block.steps,
                "steps_full": block.steps_full,
                "degraded_because": block.degraded_because or None,
                "releases_skipped": block.releases_skipped,
                "late_ms": block.late_ms,
            }
        )
        return
    state = f"  state {hex_digest(block.state_digest)}" if block.state_digest is not None else ""
    console.print(
        f"block {block.index:>5}  epoch {block.epoch}  {block.generate_ms:8.1f} ms  "
        f"frames {hex_digest(block.frames_digest)}{state}{_served(block)}",
        highlight=False,
    )


def _served(block: Block) -> str:
    """What was not as it should be about a block; nothing where all was."""
    notes = []
    if block.degraded:
        notes.append(f"{block.steps} of {block.steps_full} steps: {block.degraded_because}")
    if block.late_ms > 0:
        notes.append(f"{block.late_ms:.1f} ms late")
    if block.releases_skipped:
        notes.append(f"skipped before it: {block.releases_skipped}")
    return "".join(f"  ({note})" for note in notes)


def chosen(text: str, known: dict[str, ChoiceT], field: str) -> ChoiceT:
    """The value of that name, whatever its case.

    Raises:
        InvalidInput: there is none; the message lists those there are.
    """
    try:
        return known[text.lower()]
    except KeyError:
        raise InvalidInput(
            f"{field} must be one of {', '.join(known)}; got {text!r}", field=field
        ) from None
