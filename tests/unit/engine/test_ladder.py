"""The ladder of quality: a block from fewer denoising steps, and what may be left out of it."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from services.engine.model.config import MG2, SMALL, TINY, WorldConfig
from services.engine.model.dirty import DirtyWorld
from services.engine.world import check_steps, quanta_of
from tests.unit.engine.support import PrivateState, run_block, script, tiny_world
from worldline.errors import InvalidInput

FIVE = dataclasses.replace(TINY, sigmas=(1.0, 0.9, 0.7, 0.5, 0.2))


@pytest.mark.parametrize("config", [TINY, SMALL, MG2, FIVE], ids=lambda config: config.name)
def test_levels_start_at_noise_go_down_and_are_the_presets_own(config: WorldConfig) -> None:
    full = len(config.sigmas)
    assert config.sigmas_of(full) == config.sigmas
    for steps in range(1, full + 1):
        levels = config.sigmas_of(steps)
        assert len(levels) == len(set(levels)) == steps
        assert levels[0] == 1.0
        assert list(levels) == sorted(levels, reverse=True)
        assert set(levels) <= set(config.sigmas)
        if steps > 1:
            assert levels[-1] == config.sigmas[-1]


def test_which_levels() -> None:
    assert TINY.sigmas_of(1) == (1.0,)
    assert TINY.sigmas_of(2) == (1.0, 0.4)
    assert FIVE.sigmas_of(3) == (1.0, 0.7, 0.2)
    assert FIVE.sigmas_of(4) == (1.0, 0.9, 0.7, 0.2)


@pytest.mark.parametrize("steps", [-1, 0, 4])
@pytest.mark.parametrize("computed", [True, False], ids=["causal", "dirty"])
def test_steps_out_of_range_are_refused_and_the_state_is_left_alone(
    computed: bool, steps: int
) -> None:
    session = PrivateState(tiny_world() if computed else DirtyWorld(TINY))
    before = session.digest()
    with pytest.raises(InvalidInput) as refused:
        session.block(script(0), steps)
    assert refused.value.field == "steps"
    assert session.digest() == before


def test_each_step_is_a_quantum_and_the_context_pass_is_one_more() -> None:
    model = tiny_world()
    for steps in (1, 2, 3):
        session = PrivateState(model)
        yields = sum(1 for _ in model.block(session.tree, script(0), steps))
        assert yields + 1 == quanta_of(model, steps) == steps + 1
    assert [quanta_of(DirtyWorld(TINY), steps) for steps in (1, 2, 3)] == [1, 1, 1]


def test_the_context_pass_runs_at_every_quality() -> None:
    """The rows of this block in the caches come from it."""
    model = tiny_world()
    empty, one, full = PrivateState(model), PrivateState(model), PrivateState(model)
    one.block(script(0), 1)
    full.block(script(0), 3)
    assert one.tree["block_index"] == full.tree["block_index"] == 1
    for name in ("kv_cache", "kv_cache_mouse"):
        for index in range(model.config.action_layers):
            caches = [state.tree[name][index] for state in (empty, one, full)]
            assert caches[1]["global_end_index"] == caches[2]["global_end_index"]
            assert not torch.equal(caches[1]["k"], caches[0]["k"])
    assert one.digest() != full.digest()


def test_a_block_is_a_function_of_state_action_and_steps() -> None:
    """A twin that is given the same steps is equal; one step elsewhere and it is not."""
    model = tiny_world()
    first, twin, other = PrivateState(model), PrivateState(model), PrivateState(model)
    for index, steps in enumerate((3, 1, 2, 3)):
        frames = first.block(script(index), steps)
        assert run_block(model, twin.tree, script(index), steps) == frames
        other.block(script(index), 2 if index == 1 else steps)
    assert first.digest() == twin.digest() != other.digest()


def test_the_bounds_are_named() -> None:
    check_steps(1, 1)
    with pytest.raises(InvalidInput, match="1 to 4"):
        check_steps(5, 4)
