"""The full-size preset's way of computing, at a small size: graphs change no bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import cast

import pytest
import torch

from services.engine.device import EngineDevice, fix_numerics
from services.engine.model.causal import CausalWorld
from services.engine.model.config import SMALL
from services.engine.model.graph_world import GraphWorld
from services.engine.model.graphs import Graphs
from services.engine.model.pointwise import compiled
from services.engine.model.transformer import predict
from services.engine.model.weights import build_weights, in_bfloat16
from services.engine.world import Action, StateTree
from worldline.cuda.availability import unavailable_reason
from worldline.state.digest import crc64
from worldline.state.tree import materialize, plan

CONFIG = replace(SMALL, name="slim", layers=3, action_layers=2)
DEVICE = torch.device("cuda:0")
BLOCKS = 4
ROOT = Path(__file__).parents[2]

# Not by a fixture: what a module shares is made before a test's own fixtures.
pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))

Blocks = list[tuple[int, int]]


@pytest.fixture(autouse=True, scope="module")
def _numerics() -> None:
    """Before anything is computed that a module shares."""
    fix_numerics(EngineDevice("cuda:0"))


class Session:
    """A state in memory of its own, as a slot is."""

    def __init__(self, world: CausalWorld, seed: int = 7) -> None:
        self.world = world
        self.layout = plan(world.state_spec())
        self.buffer = torch.zeros(self.layout.extent_bytes, dtype=torch.uint8, device=DEVICE)
        self.state = cast(StateTree, materialize(self.layout, self.buffer))
        world.initialise(self.state, seed)

    def moved(self, world: CausalWorld | None = None) -> Session:
        """The same bytes elsewhere."""
        other = Session(world or self.world)
        other.buffer.copy_(self.buffer)
        for mine, theirs in zip(
            self.state["crossattn_cache"], other.state["crossattn_cache"], strict=True
        ):
            theirs["is_init"] = mine["is_init"]
        other.state["block_index"] = self.state["block_index"]
        return other

    def quanta(self, index: int):  # type: ignore[no-untyped-def]
        """One block, quantum by quantum."""
        action = Action(index, index * 5 % 16, mouse_dx=(index % 7 - 3) / 3)
        return (yield from self.world.block(self.state, action, self.world.denoising_steps))

    def seen(self, pixels: bytes) -> tuple[int, int]:
        """Digests of the state and of the frames."""
        torch.cuda.synchronize()
        return crc64(memoryview(self.buffer.cpu().numpy())), crc64(pixels)

    def play(self, first: int = 0, blocks: int = BLOCKS) -> Blocks:
        """Block after block."""
        found = []
        for index in range(first, first + blocks):
            run = self.quanta(index)
            while True:
                try:
                    next(run)
                except StopIteration as finished:
                    found.append(self.seen(finished.value.pixels))
                    break
        return found


@pytest.fixture(scope="module")
def world() -> GraphWorld:
    return GraphWorld(build_weights(CONFIG, 0, DEVICE))


@pytest.fixture(scope="module")
def expected(world: GraphWorld) -> Blocks:
    """One session alone, where it began."""
    return Session(world).play()


def test_a_graph_is_its_kernels(expected: Blocks) -> None:
    """One by one they give the same: what is recorded is all that runs."""
    narrow = in_bfloat16(build_weights(CONFIG, 0, DEVICE))
    session = Session(CausalWorld(narrow, compiled(narrow.dtype)))
    assert session.play() == expected
    assert len({state for state, _ in expected}) == BLOCKS


def test_a_state_that_comes_to_lie_elsewhere_goes_on(world: GraphWorld, expected: Blocks) -> None:
    session = Session(world)
    session.play(0, 2)
    arrived = session.moved()
    session.buffer.fill_(0xFF)  # whoever still reads or writes the old place shows
    assert arrived.play(2, 2) == expected[2:]
    assert bool((session.buffer == 0xFF).all())


def test_a_place_is_recorded_once(world: GraphWorld, expected: Blocks) -> None:
    """One graph while the window fills, one when it is full, in each place."""
    session = Session(world)
    assert session.play(0, 2) == expected[:2]
    recorded = set(world._passes._graphs.values())
    assert session.play(2, 2) == expected[2:]
    assert set(world._passes._graphs.values()) == recorded


def test_two_sessions_take_turns(world: GraphWorld, expected: Blocks) -> None:
    one, other = Session(world), Session(world, seed=99)
    found: Blocks = []
    for index in range(2):
        mine, theirs = one.quanta(index), other.quanta(index)
        done: list[bytes] = []

        def noted(run, into):  # type: ignore[no-untyped-def]
            into.append((yield from run).pixels)

        for _ in zip_longest(noted(mine, done), theirs):
            torch.cuda.synchronize()
        found.append(one.seen(done[0]))
    assert found == expected[:2]


def test_more_places_than_graphs_are_kept_for(world: GraphWorld, expected: Blocks) -> None:
    crowded = GraphWorld(build_weights(CONFIG, 0, DEVICE))
    run = partial(predict, crowded.weights, crowded.pointwise)
    crowded._passes = Graphs(run, DEVICE, repeats=True, most=1)
    sessions = [Session(crowded), Session(crowded)]
    played = [sessions[number].play(block, 1) for block in range(3) for number in (0, 1)]
    assert played == [[expected[block]] for block in range(3) for _ in (0, 1)]


def test_another_process_that_compiles_anew_gives_the_same_bits(
    tmp_path: Path, expected: Blocks
) -> None:
    env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    code = (
        "import json; from tests.gpu.test_graph_world import *; "
        "fix_numerics(EngineDevice('cuda:0')); "
        "print(json.dumps(Session(GraphWorld(build_weights(CONFIG, 0, DEVICE))).play()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert [tuple(pair) for pair in json.loads(done.stdout.splitlines()[-1])] == expected
