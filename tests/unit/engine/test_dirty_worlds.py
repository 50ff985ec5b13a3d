"""What the dirty trace shows of this repository's own worlds, beside what the paper saw of its."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.engine.model.config import MG2, SMALL
from services.engine.model.dirty import DirtyWorld
from services.engine.model.state import cache_size
from services.engine.world import WorldModel
from tests.unit.engine.support import PrivateState, script, tiny_world
from tests.unit.state.traces import record
from worldline.state.inspection import Inspection, inspection_of
from worldline.state.update_rule import UpdateRule

#: Matrix-Game-2's shapes with an eighth of the channels and a fifteenth of the layers: every share
#: of its bytes is the same, and it has 14 MB.
SCALED_MG2 = replace(MG2, layers=2, action_layers=1, head_dim=16, action_head_dim=8)


def inspected(model: WorldModel, blocks: int, granule_bytes: int) -> Inspection:
    state = PrivateState(model)
    steps = (state.block(script(index)) for index in range(blocks))
    return inspection_of(record(state.layout, state.buffer, granule_bytes, steps))


def test_scaling_keeps_the_shares_of_matrix_game_2() -> None:
    ratio = cache_size(MG2).size_bytes / cache_size(SCALED_MG2).size_bytes
    assert ratio == pytest.approx(8 * 15, rel=1e-5)


@pytest.mark.parametrize(
    ("model", "granule_bytes", "full", "filling"),
    [
        (DirtyWorld(SCALED_MG2), 256, 0.777, 0.389),
        (DirtyWorld(SMALL), 512, 0.768, 0.384),
        (tiny_world(), 256, 0.699, 0.353),
    ],
    ids=["mg2", "small", "tiny"],
)
def test_a_rolling_model_rewrites_its_window_once_it_is_full(
    model: WorldModel, granule_bytes: int, full: float, filling: float
) -> None:
    """The paper: 0.71-0.78 of Matrix-Game-2's cache, at 310 of 399 chunks 0.777 (section 3.3).

    Two blocks fill a window here, so that filling is half of that; 0.249 is LongLive's, whose
    window takes four.
    """
    inspection = inspected(model, 4, granule_bytes)
    dirty = [step.dirty_fraction for step in inspection.steps]
    assert dirty[1] == pytest.approx(filling, abs=0.002)
    assert dirty[2:] == pytest.approx([full] * 2, abs=0.002)
    assert inspection.classification.rule is UpdateRule.WINDOW_REWRITE
    assert inspection.classification.first_step == 2
    assert inspection.rewritten_fraction > 0.95


def test_what_no_action_module_uses_is_never_written() -> None:
    """19.4 % of the state: the action caches of the blocks without an action module."""
    inspection = inspected(DirtyWorld(SCALED_MG2), 3, 256)
    assert inspection.never_written_bytes / inspection.state_bytes == pytest.approx(0.194, abs=1e-3)
    layout = inspection.trace.layout
    unwired = {
        leaf.path
        for leaf in layout.tensors
        if leaf.path.startswith(("kv_cache_mouse[1]", "kv_cache_keyboard[1]"))
    }
    found = {layout.tensors[index].path for index in inspection.never_written}
    assert found == unwired | {"first_frame"}


def test_the_first_frames_keys_are_written_once_and_every_window_everywhere() -> None:
    inspection = inspected(tiny_world(), 4, 128)
    groups = {group.pattern: group for group in inspection.groups}
    assert groups["crossattn_cache[*].k"].classification.rule is UpdateRule.FRAME_BANK
    assert groups["kv_cache[*].k"].classification.rule is UpdateRule.WINDOW_REWRITE
    assert groups["kv_cache[*].k"].position_heat is not None
    assert groups["kv_cache[*].k"].position_heat.tolist() == [1] * 24
    mouse = groups["kv_cache_mouse[*].k"]
    assert mouse.position_heat is not None
    assert mouse.position_heat.tolist() == [0.5] * 6, "two of four layers have an action module"
    assert mouse.never_written_count == 2
