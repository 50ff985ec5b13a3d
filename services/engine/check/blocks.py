"""Checks of a block: what it returns, what it writes, how it is cut into quanta."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import numpy as np
import torch

from services.engine.check.blame import blamed
from services.engine.check.case import Case
from services.engine.check.finding import Found, failed, held, listed, warned
from services.engine.check.private import PrivateWorld, first_difference
from services.engine.check.script import scripted
from services.engine.world import Frames, quanta_of
from worldline.errors import CapacityExhausted, InvalidInput, InvariantBroken
from worldline.rpc.channel import MESSAGE_BYTES_MAX
from worldline.state.harvest import harvest

#: Of a message, for everything but pixels.
_HEADER_BYTES = 64 << 10
_BLOCKS_TOGETHER = 2


def in_place(case: Case) -> Found:
    """A block writes into the leaves that it was given, and leaves them where they are."""
    with PrivateWorld.opened(case.subject, case.wish.seed) as world:
        before = _addresses(world)
        try:
            world.block()
        except InvariantBroken as error:
            if error.reason != "LEAF_REPLACED":
                raise
            return failed(
                f"the model replaced leaf {error.leaf}",
                "write in place: `leaf[...] = value` or `leaf.copy_(value)`",
            )
        moved = [path for path, address in _addresses(world).items() if before[path] != address]
        if moved:
            return failed(
                f"{listed(moved)} lies elsewhere after a block", "do not resize or re-set leaves"
            )
        world.memory.layout()
        return held(f"{len(before)} leaves are where they were")


def _addresses(world: PrivateWorld) -> dict[str, int | None]:
    return {item.path: item.address for item in harvest(world.state).tensors}


def frames(case: Case) -> Found:
    """`Frames` hold as many bytes as they say, and fit one message."""
    with PrivateWorld.opened(case.subject, case.wish.seed) as world:
        shown: Any = world.block()
    remedy = "return Frames(count, height, width, pixels), pixels as bytes, uint8 RGB"
    if not isinstance(shown, Frames):
        return failed(f"a block returned {type(shown).__name__}, not Frames", remedy)
    sizes = (shown.count, shown.height, shown.width)
    if any(type(size) is not int or size < 0 for size in sizes):
        return failed(f"a block of {sizes} frames, rows, columns", remedy)
    if type(shown.pixels) is not bytes:
        return failed(f"pixels are {type(shown.pixels).__name__}, not bytes", remedy)
    wanted = shown.count * shown.height * shown.width * 3
    if len(shown.pixels) != wanted:
        return failed(f"{len(shown.pixels)} bytes for frames of {wanted}", remedy)
    if wanted > MESSAGE_BYTES_MAX - _HEADER_BYTES:
        return failed(
            f"{wanted:,} bytes a block do not fit one message of {MESSAGE_BYTES_MAX:,}",
            "show fewer or smaller frames a block",
        )
    if not shown.count:
        return held("it shows nothing: its state alone is real")
    return held(f"{shown.count} frames of {shown.width} x {shown.height}, {wanted:,} bytes")


def block_index(case: Case) -> Found:
    """An action for another block than the state's next is refused, and changes nothing."""
    snapshot = case.reference.snapshot
    for asked in (snapshot.block_index + 1, snapshot.block_index - 1):
        with PrivateWorld.restored(case.subject, snapshot) as world:
            before = world.memory.digests()
            world.memory.changing()
            model = case.subject.model
            run = model.block(world.state, scripted(asked), model.denoising_steps)
            remedy = "raise InvalidInput with field action.block_index before anything is written"
            try:
                for _ in run:
                    pass
            except InvalidInput:
                pass
            except Exception as error:
                return failed(f"an action for block {asked} raised {blamed(error)}", remedy)
            else:
                return failed(
                    f"at block {snapshot.block_index} an action for block {asked} was taken", remedy
                )
            if world.memory.digests() != before:
                return failed(f"an action for block {asked} was refused but changed leaves", remedy)
    return held("blocks ahead and behind are refused, and change nothing")


def ladder(case: Case) -> Found:
    """Every number of steps generates, in as many quanta as it says; no more, no fewer."""
    model, most = case.subject.model, case.subject.model.denoising_steps
    outcomes: dict[tuple[int, int], int] = {}
    equal: list[str] = []
    for steps in range(1, most + 1):
        with PrivateWorld.restored(case.subject, case.reference.snapshot) as world:
            quanta, shown = _counted(world, steps)
            seen = world.seen(shown)
        if quanta != quanta_of(model, steps):
            return failed(
                f"a block of {steps} steps has {quanta} quanta, not {quanta_of(model, steps)}",
                "yield after every quantum but the last; each step left out is one quantum fewer",
            )
        outcome = (seen.frames_digest, seen.state_digest)
        if outcome in outcomes:
            equal.append(f"{outcomes[outcome]} and {steps}")
        outcomes.setdefault(outcome, steps)
    for steps in (0, most + 1):
        problem = _refusal_of(case, steps)
        if problem:
            return failed(problem, "call check_steps(steps, self.denoising_steps) first")
    if equal:
        return warned(
            f"blocks of {listed(equal)} steps are the same", "a step that changes nothing is none"
        )
    if most == 1:
        return held(f"no ladder: one step, {model.quanta_per_block} quanta")
    return held(f"1 to {most} steps, {quanta_of(model, 1)} to {model.quanta_per_block} quanta")


def _counted(world: PrivateWorld, steps: int) -> tuple[int, Frames]:
    """Quanta of a block, and its frames."""
    run, quanta = world.begin(steps), 1
    while True:
        try:
            next(run)
        except StopIteration as finished:
            return quanta, world.finished(finished.value)
        quanta += 1


def _refusal_of(case: Case, steps: int) -> str:
    with PrivateWorld.restored(case.subject, case.reference.snapshot) as world:
        try:
            world.block(steps)
        except InvalidInput:
            return ""
        except Exception as error:
            return f"a block of {steps} steps raised {blamed(error)}"
    return f"a block of {steps} steps was generated"


def process_wide(case: Case) -> Found:
    """What belongs to the whole process is as it was, after a block and between its quanta."""
    with _kept(), PrivateWorld.restored(case.subject, case.reference.snapshot) as world:
        before = {name: read() for name, read in _PROCESS_WIDE.items()}
        run, changed = world.begin(), set[str]()
        while True:
            try:
                next(run)
            except StopIteration as finished:
                world.finished(finished.value)
                break
            finally:
                changed |= {name for name, read in _PROCESS_WIDE.items() if read() != before[name]}
    if changed:
        return failed(
            f"a block changes {listed(sorted(changed))}",
            "draw from a generator that is a leaf; leave a mode before every yield",
        )
    return held("global generators, gradient mode and flags are left alone")


#: By name, what a block must leave alone, as something to compare.
_PROCESS_WIDE: dict[str, Callable[[], object]] = {
    "torch's global generator": lambda: bytes(torch.get_rng_state().numpy()),
    "torch's generators on GPUs": lambda: [bytes(state.numpy()) for state in _cuda_generators()],
    "Python's random": random.getstate,
    "numpy's random": lambda: repr(np.random.get_state()),
    "gradient mode": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "the default dtype": torch.get_default_dtype,
    "torch's number of threads": torch.get_num_threads,
    "the flag for deterministic algorithms": torch.are_deterministic_algorithms_enabled,
}


def _cuda_generators() -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


@contextmanager
def _kept() -> Iterator[None]:
    """Give back afterwards what a block may have changed."""
    drawn, python, numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()
    on_gpus, dtype, threads = _cuda_generators(), torch.get_default_dtype(), torch.get_num_threads()
    with torch.set_grad_enabled(torch.is_grad_enabled()):
        try:
            yield
        finally:
            torch.set_rng_state(drawn)
            random.setstate(python)
            np.random.set_state(numpy)
            torch.set_default_dtype(dtype)
            torch.set_num_threads(threads)
            if on_gpus:
                torch.cuda.set_rng_state_all(on_gpus)


def interleaved(case: Case) -> Found:
    """Two sessions that take turns quantum by quantum are those that they are alone."""
    seeds = (case.wish.seed, case.wish.seed + 1)
    blocks = min(_BLOCKS_TOGETHER, case.wish.blocks)
    alone = []
    for seed in seeds:
        with PrivateWorld.opened(case.subject, seed) as world:
            alone.append(world.play(blocks))
    with PrivateWorld.opened(case.subject, seeds[0]) as one:
        try:
            other = PrivateWorld.opened(case.subject, seeds[1])
        except CapacityExhausted as error:
            return warned(f"one session at a time: {error.message}", "lend more sets of tensors")
        with other:
            together = _together(one, other, blocks)
    for seed, expected, actual in zip(seeds, alone, together, strict=True):
        found = first_difference(case.subject.layout, expected, actual)
        if found:
            return failed(
                f"beside another session, {found} (seed {seed})",
                "keep nothing of a session on the object: one object serves all of them",
            )
    return held(f"two sessions, {blocks} blocks each, quantum by quantum")


def _together(one: PrivateWorld, other: PrivateWorld, blocks: int) -> list[Any]:
    seen: list[Any] = [(), ()]
    for _ in range(blocks):
        runs = [_quanta(world) for world in (one, other)]
        for mine, theirs in zip_longest(*runs):
            for index, shown in enumerate((mine, theirs)):
                if shown is not None:
                    seen[index] = (*seen[index], (one, other)[index].seen(shown))
    return seen


def _quanta(world: PrivateWorld) -> Iterator[Frames | None]:
    """None after each quantum but the last, the frames after that."""
    run = world.begin()
    while True:
        try:
            next(run)
        except StopIteration as finished:
            yield world.finished(finished.value)
            return
        yield None
