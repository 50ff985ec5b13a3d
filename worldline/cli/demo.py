"""Demo: a world plays, moves to another node and back while a client watches, bit for bit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from worldline.cli.cluster import LocalCluster, OnEvent
from worldline.cli.common import DevicesOption, JsonOption, ModelsOption, model_names, run
from worldline.cli.film import Film, Take, play_twin
from worldline.cli.leftovers import Leftovers
from worldline.cli.moves import print_record
from worldline.cli.output import console, err_console, hex_digest, move_jsonable, print_json
from worldline.cli.parts import ClusterOptions
from worldline.cli.strip import Labelled, check_writable, write_strip
from worldline.devicename import CPU
from worldline.errors import InvalidInput
from worldline.sdk import Block, Client, MoveRecord

_NODES = ("node-1", "node-2")
_SEED = 20_260
#: Blocks of each owner that the strip shows; the film has at least as many of each.
_SHOWN = 4


class Checks:
    """What must hold, with what was found."""

    def __init__(self) -> None:
        self.results: list[tuple[str, bool, str]] = []

    def add(self, name: str, held: bool, found: str = "") -> None:
        """Record one check."""
        self.results.append((name, held, found))

    @property
    def all_held(self) -> bool:
        """Every one did, and there were some."""
        return bool(self.results) and all(held for _, held, _ in self.results)


def demo(
    out: Annotated[Path, typer.Option(help="Directory for the frames.")] = Path("demo-out"),
    preset: Annotated[
        str, typer.Option(help="tiny, small, or one of --models; its state must fit 64 MiB.")
    ] = "tiny",
    models: ModelsOption = "",
    devices: DevicesOption = CPU,
    as_json: JsonOption = False,
) -> None:
    """Two nodes, one live world, there and back; compared with a twin that never moved.

    Exit status 0 only if every check held.
    """

    async def work() -> int:
        strip = _strip_in(out)
        began_s = time.monotonic()
        checks, leftovers = Checks(), Leftovers.before()
        say = None if as_json else _say
        options = ClusterOptions(
            nodes=len(_NODES), devices=tuple(devices.split(",")), models=model_names(models)
        )
        cluster = LocalCluster(options, on_event=say)
        await cluster.start()
        try:
            async with Client(cluster.placement_address) as client:
                take, twin = await _play_both(client, preset, say)
                write_strip(strip, _shown(take), columns=_SHOWN)
                _check_moves(checks, take)
                _check_twin(checks, take, twin)
            checks.add(
                "no slot, reservation or world is held", *await leftovers.worlds_gone(cluster)
            )
        finally:
            killed = await cluster.stop()
        checks.add("every process ended by itself", not killed, ", ".join(killed))
        checks.add("nothing is left behind", *leftovers.compare(cluster))
        _report(checks, take, strip, time.monotonic() - began_s, as_json)
        return 0 if checks.all_held else 1

    run(work)


def _strip_in(out: Path) -> Path:
    """Before the work that would be lost: where the frames go.

    Raises:
        InvalidInput: nothing can be written there.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot make {out}: {error.strerror}", field="--out") from error
    strip = out / "strip.png"
    check_writable(strip, "--out")
    return strip


async def _play_both(client: Client, preset: str, say: OnEvent | None) -> tuple[Take, list[Block]]:
    """The world that moves, and then its twin: same seed, same actions, never moved."""
    talk = say or (lambda _text: None)
    world = await client.open(preset, seed=_SEED, node=_NODES[0])
    talk(f"world {world.session_id} plays on {_NODES[0]}")
    film = Film(world, say=say)
    take = await film.shoot(targets=(_NODES[1], _NODES[0]))
    await world.close()
    twin = await client.open(preset, seed=_SEED, node=_NODES[0])
    talk(f"twin {twin.session_id} plays the same {len(take.blocks)} actions and stays")
    blocks = await play_twin(twin, len(take.blocks))
    await twin.close()
    return take, blocks


def _check_moves(checks: Checks, take: Take) -> None:
    for record, target in zip(take.records, (_NODES[1], _NODES[0]), strict=True):
        checks.add(f"the move to {target} committed", record.committed, record.reason)
        same = record.source_digest == record.target_digest and record.source_digest != 0
        checks.add(f"both digests of the move to {target} are equal", same)
    indices = [block.index for block in take.blocks]
    checks.add(
        "the client saw consecutive blocks",
        indices == list(range(len(indices))),
        f"{len(indices)} blocks",
    )
    epochs = [block.epoch for block in take.blocks]
    checks.add(
        "the client watched through both moves",
        sorted(set(epochs)) == [epochs[0], epochs[0] + 1, epochs[0] + 2],
        f"epochs {sorted(set(epochs))}",
    )


def _check_twin(checks: Checks, take: Take, twin: list[Block]) -> None:
    different = [
        ours.index
        for ours, theirs in zip(take.blocks, twin, strict=False)
        if ours.state_digest is None
        or (ours.index, ours.state_digest, ours.frames_digest)
        != (theirs.index, theirs.state_digest, theirs.frames_digest)
        or not (ours.frames == theirs.frames).all()
    ]
    checks.add(
        "every block equals the twin's (state and frames)",
        not different and len(twin) == len(take.blocks),
        f"different: {different[:5]}" if different else f"{len(twin)} blocks compared",
    )


def _shown(take: Take) -> list[Labelled]:
    """A row before the first move, one after it, one after the second."""
    first = take.blocks[0].epoch
    rows = []
    for epoch, node in ((first, _NODES[0]), (first + 1, _NODES[1]), (first + 2, _NODES[0])):
        blocks = [block for block in take.blocks if block.epoch == epoch]
        chosen = blocks[-_SHOWN:] if epoch == first else blocks[:_SHOWN]
        rows += [Labelled(f"{node} block {each.index}", each.frames[-1]) for each in chosen]
    return rows


def _report(checks: Checks, take: Take, strip: Path, total_s: float, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "held": checks.all_held,
                "checks": [
                    {"name": name, "held": held, "found": found}
                    for name, held, found in checks.results
                ],
                "moves": [move_jsonable(record) for record in take.records],
                "blocks": len(take.blocks),
                "strip": str(strip),
                "total_s": total_s,
            }
        )
        return
    for record in take.records:
        console.print()
        print_record(record)
        _print_trace_hint(record)
    console.print()
    for name, held, found in checks.results:
        mark = "[green]held  [/]" if held else "[red]BROKEN[/]"
        console.print(f"{mark} {name}{f' ({found})' if found else ''}", highlight=False)
    last = take.blocks[-1]
    console.print(f"last block {last.index}: state {hex_digest(last.state_digest)}")
    console.print(f"frames: {strip}   total: {total_s:.1f} s", highlight=False)


def _print_trace_hint(record: MoveRecord) -> None:
    console.print(f"trace {record.trace_id or '-'}", highlight=False)


def _say(text: str) -> None:
    err_console.print(text, markup=False, highlight=False)
