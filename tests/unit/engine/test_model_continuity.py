"""Continuity: everything that decides the next frame is in the state tree, and nothing else is."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from itertools import zip_longest

import pytest
import torch

from services.engine.model.config import TINY
from services.engine.model.dirty import DirtyWorld
from services.engine.world import Action
from tests.unit.engine.support import PrivateState, script, tiny_world
from worldline.errors import InvalidInput

BLOCKS_AFTER = 6
WARM_BLOCKS = 3


@pytest.fixture(scope="module")
def model():
    return tiny_world()


@pytest.fixture(scope="module")
def warm(model) -> PrivateState:
    session = PrivateState(model)
    for block in range(WARM_BLOCKS):
        session.block(script(block))
    return session


def play(session: PrivateState, blocks: int = BLOCKS_AFTER) -> list[tuple[int, str]]:
    out = []
    start = session.tree["block_index"]
    for block in range(start, start + blocks):
        frames = session.block(script(block))
        out.append((session.digest(), hashlib.sha256(frames.pixels).hexdigest()))
    return out


def test_twins_are_bit_identical(warm: PrivateState) -> None:
    assert play(warm.copy()) == play(warm.copy())


def test_sessions_of_one_model_do_not_meet(model, warm: PrivateState) -> None:
    """Interleaving quanta of another session changes nothing: the model holds weights only."""
    alone = [digest for digest, _ in play(warm.copy(), 2)]
    session, other = warm.copy(), PrivateState(model, seed=99)
    together = []
    for block in range(2):
        mine = model.block(session.tree, script(WARM_BLOCKS + block), model.denoising_steps)
        theirs = model.block(other.tree, script(block), model.denoising_steps)
        for _ in zip_longest(mine, theirs):
            pass
        together.append(session.digest())
    assert together == alone


def test_global_random_state_and_grad_mode_are_left_alone(warm: PrivateState) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    run = warm.model.block(warm.copy().tree, script(WARM_BLOCKS), warm.model.denoising_steps)
    for _ in run:
        assert torch.is_grad_enabled()
    assert torch.equal(before, torch.get_rng_state())


def test_a_different_seed_is_a_different_world(model) -> None:
    assert play(PrivateState(model, 1), 1) != play(PrivateState(model, 2), 1)


def test_actions_decide(warm: PrivateState) -> None:
    seen = set()
    for action in (
        Action(WARM_BLOCKS),
        Action(WARM_BLOCKS, keyboard=1),
        Action(WARM_BLOCKS, keyboard=2),
        Action(WARM_BLOCKS, mouse_dx=0.5),
        Action(WARM_BLOCKS, mouse_dy=0.5),
    ):
        session = warm.copy()
        frames = session.block(action)
        cache = session.tree["kv_cache"][-1]["k"].view(torch.int16).numpy().tobytes()
        seen.add((frames.pixels, cache))
    assert len(seen) == 5
    assert len({pixels for pixels, _ in seen}) == 5
    assert len({cache for _, cache in seen}) == 5


def test_one_flipped_bit_in_the_read_half_diverges_at_every_following_block(
    warm: PrivateState,
) -> None:
    twin, bad = warm.copy(), warm.copy()
    leaf = bad.tree["kv_cache"][1]["v"]
    half = TINY.window_tokens // 2
    bits = leaf.view(torch.int16)
    bits[0, half + 5, 1, 3] ^= 1 << 13
    for (good_digest, good_frames), (bad_digest, bad_frames) in zip(
        play(twin), play(bad), strict=True
    ):
        assert good_digest != bad_digest
        assert good_frames != bad_frames


def _first_wired(tree: dict, path: str) -> torch.Tensor:
    node = tree
    for step in path.split("."):
        node = node[int(step)] if step.isdigit() else node[step]
    return node


#: Every kind of tensor that a block reads.
READ_LEAVES = [
    *(
        f"{name}.0.{part}"
        for name in ("kv_cache", "kv_cache_mouse", "kv_cache_keyboard")
        for part in ("k", "v", "global_end_index", "local_end_index")
    ),
    "crossattn_cache.0.k",
    "crossattn_cache.0.v",
    "decoder.latent",
    "decoder.pose",
    "decoder.velocity",
    "noise.generator",
    "first_frame",
]


@pytest.mark.parametrize("path", READ_LEAVES)
@pytest.mark.parametrize("how", ["dropped", "perturbed"])
def test_no_leaf_can_be_lost(warm: PrivateState, path: str, how: str) -> None:
    """Fault 24: a state that lacks any one field shows other frames, or is refused by name."""
    expected = play(warm.copy(), 3)
    session = warm.copy()
    leaf = _first_wired(session.tree, path)
    if how == "dropped":
        leaf.zero_()
    elif path == "noise.generator":
        leaf.copy_(torch.Generator().manual_seed(5).get_state())
    elif leaf.dtype is torch.int64:
        leaf.add_(1)
    else:
        leaf.copy_((leaf.float() * 1.5 + 0.25).to(leaf.dtype))
    refused: InvalidInput | None = None
    try:
        pixels = session.block(script(WARM_BLOCKS)).pixels
    except InvalidInput as error:
        refused = error
    if refused is not None:
        assert refused.leaf is not None
        assert refused.leaf.split(".")[0].split("[")[0] == path.split(".")[0]
        return
    assert hashlib.sha256(pixels).hexdigest() != expected[0][1]


def test_a_lost_flag_or_counter_is_noticed(warm: PrivateState) -> None:
    expected = play(warm.copy(), 1)
    flipped = warm.copy()
    # Nothing else must change: it is projected again from the tree's own first frame.
    flipped.tree["crossattn_cache"][0]["is_init"] = False
    flipped.tree["crossattn_cache"][0]["k"].zero_()
    assert play(flipped, 1) == expected
    fresh = PrivateState(warm.model)
    fresh.tree["crossattn_cache"][0]["is_init"] = True
    assert play(fresh, 1) != play(PrivateState(warm.model), 1)
    behind = warm.copy()
    behind.tree["block_index"] = 0
    with pytest.raises(InvalidInput) as refused:
        behind.block(script(WARM_BLOCKS))
    assert refused.value.leaf == "block_index"
    with pytest.raises(InvalidInput) as skewed:
        behind.block(script(0))
    assert skewed.value.leaf == "kv_cache[0].global_end_index"


def test_garbage_in_the_generator_leaf_is_refused_by_name(warm: PrivateState) -> None:
    session = warm.copy()
    session.tree["noise"]["generator"].zero_()
    with pytest.raises(InvalidInput) as refused:
        session.block(script(WARM_BLOCKS))
    assert refused.value.leaf == "noise.generator"


@pytest.mark.parametrize("index", ["global_end_index", "local_end_index"])
def test_impossible_indices_are_refused_before_any_window_shifts(
    warm: PrivateState, index: str
) -> None:
    session = warm.copy()
    session.tree["kv_cache_keyboard"][1][index].fill_(4)
    before = session.digest()
    with pytest.raises(InvalidInput) as refused:
        session.block(script(WARM_BLOCKS))
    assert refused.value.leaf == f"kv_cache_keyboard[1].{index}"
    assert session.digest() == before


_CHILD = """
import hashlib, json, torch
torch.set_num_threads(1)
from tests.unit.engine.support import PrivateState, script, tiny_world
session = PrivateState(tiny_world(), 7)
out = []
for block in range(4):
    frames = session.block(script(block))
    out.append([session.digest(), hashlib.sha256(frames.pixels).hexdigest()])
print(json.dumps(out))
"""


def test_another_process_gives_the_same_bits(model) -> None:
    here = [list(pair) for pair in play(PrivateState(model, 7), 4)]
    done = subprocess.run(
        [sys.executable, "-c", _CHILD], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout) == here


def test_frames_are_a_picture_that_moves_smoothly(warm: PrivateState) -> None:
    session = warm.copy()
    frames = session.block(Action(WARM_BLOCKS, keyboard=1))
    shape = (frames.count, frames.height, frames.width, 3)
    assert shape == (12, TINY.height, TINY.width, 3)
    pixels = torch.frombuffer(bytearray(frames.pixels), dtype=torch.uint8).view(shape).float()
    step = (pixels[1:] - pixels[:-1]).abs().mean(dim=(1, 2, 3))
    across = (pixels[:, :, 1:] - pixels[:, :, :-1]).abs().mean()
    assert pixels.std() > 20  # not one colour
    assert float(step.min()) > 0
    assert float(step.max()) < 15  # in time: white noise would be about 85
    assert float(across) < 15  # in space


@pytest.mark.parametrize("computed", [True, False], ids=["causal", "dirty"])
def test_the_generator_in_the_state_advances_by_exactly_the_blocks_draws(computed: bool) -> None:
    """What is not stored back would be drawn again by the next block."""
    session = PrivateState(tiny_world() if computed else DirtyWorld(TINY))
    seen = []
    for block in range(3):
        leaf = session.tree["noise"]["generator"]
        expected = torch.Generator()
        expected.set_state(leaf.clone())
        session.block(script(block))
        if computed:
            for _ in TINY.sigmas:
                torch.randn(3 * TINY.tokens_per_frame, TINY.latent_channels, generator=expected)
            assert torch.equal(leaf, expected.get_state())
        seen.append(bytes(leaf.numpy()))
    assert len(set(seen)) == 3
