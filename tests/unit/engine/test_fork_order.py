"""When a world can be forked, and whether what was copied is still what was asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from services.engine.core import Phase
from services.engine.fork_order import (
    BRANCHES_MAX,
    Branch,
    ForkOrder,
    check_forkable,
    check_noise,
    check_standing,
)
from services.engine.making import new_world
from tests.unit.engine.support import contract_of, tiny_world
from worldline.errors import Conflict, Fenced, InvalidInput

RUNNING = replace(
    new_world("s1", 3, Phase.OPENING, contract_of(), block_index=9), phase=Phase.RUNNING
)
FORKABLE = {Phase.RUNNING, Phase.GENERATING}
STANDING = {Phase.RUNNING, Phase.FROZEN}


def order(*numbers: int, same_noise: bool = False) -> ForkOrder:
    branches = tuple(Branch(f"b{number}", 1, number) for number in numbers)
    return ForkOrder("s1", 3, contract_of(), branches, same_noise)


@pytest.mark.parametrize("phase", list(Phase))
def test_a_world_with_a_boundary_of_its_own_ahead_can_be_forked(phase: Phase) -> None:
    world = replace(RUNNING, phase=phase)
    if phase in FORKABLE:
        check_forkable(world, 3)
        return
    with pytest.raises(Conflict) as caught:
        check_forkable(world, 3)
    assert (caught.value.reason, caught.value.field) == (f"WORLD_{phase.name}", "session_id")


@pytest.mark.parametrize("phase", list(Phase))
def test_what_was_copied_stands_only_at_a_boundary(phase: Phase) -> None:
    world = replace(RUNNING, phase=phase)
    if phase in STANDING:
        check_standing(world, 3, 9)
        return
    with pytest.raises(Conflict) as caught:
        check_standing(world, 3, 9)
    assert caught.value.reason == "PARENT_GONE"


@pytest.mark.parametrize("changes", [{"epoch": 4}, {"block_index": 10}])
def test_what_was_copied_is_of_that_epoch_and_block(changes: dict[str, Any]) -> None:
    with pytest.raises(Conflict):
        check_standing(replace(RUNNING, **changes), 3, 9)


def test_an_order_for_another_epoch_is_fenced() -> None:
    for epoch in (2, 4):
        with pytest.raises(Fenced):
            check_forkable(RUNNING, epoch)


def test_as_many_branches_as_may_be_and_no_more() -> None:
    assert len(order(*range(BRANCHES_MAX)).branches) == BRANCHES_MAX
    with pytest.raises(InvalidInput) as caught:
        order(*range(BRANCHES_MAX + 1))
    assert caught.value.field == "branches"


def test_a_number_fits_32_bits() -> None:
    Branch("b", 1, 2**32 - 1)
    for number in (-1, 2**32):
        with pytest.raises(InvalidInput) as caught:
            Branch("b", 1, number)
        assert caught.value.field == "branches.number"


def test_noise_is_shared_only_where_that_is_asked_for() -> None:
    class Unsplit:
        preset = "unsplit"

    model = cast(Any, Unsplit())
    check_noise(model, order(0, same_noise=True))
    check_noise(tiny_world(), order(0))
    with pytest.raises(InvalidInput) as caught:
        check_noise(model, order(0))
    assert (caught.value.reason, caught.value.field) == ("NOISE_NOT_SPLIT", "same_noise")
