"""Measuring: a row from a throwaway session, while others play."""

from __future__ import annotations

import asyncio
import os

import pytest

from services.engine.measuring import BLOCKS_TIMED
from services.engine.models import Loaded, Models
from tests.unit.engine.owning import owning_world
from tests.unit.engine.support import Harness
from worldline.admissibility.profile_row import RequestShape
from worldline.admissibility.row_codec import row_from_proto
from worldline.contract import DecodeTier
from worldline.errors import CapacityExhausted, InvalidInput
from worldline.state.tree import plan
from worldline.v1 import contract_pb2, engine_pb2


def request(preset: str = "tiny", tier: str = "DECODE_TIER_FULL") -> engine_pb2.WarmWorldRequest:
    return engine_pb2.WarmWorldRequest(
        world=engine_pb2.WorldSpec(preset=preset), measure=contract_pb2.DecodeTier.Value(tier)
    )


async def test_a_row_is_seeded_after_the_transient(source: Harness) -> None:
    answer = await source.ask("WarmWorld", request())
    row = row_from_proto(answer.row)
    assert row.shape == RequestShape("tiny")
    assert row.binding == source.engine.profiles.binding
    assert (row.quanta_per_block, row.denoising_steps) == (4, 3)
    assert row.step is not None
    assert (row.step.samples, row.closing.samples) == (3 * BLOCKS_TIMED, BLOCKS_TIMED)
    assert source.engine.sessions == {}


async def test_only_what_was_asked_for_is_measured(source: Harness) -> None:
    plain = engine_pb2.WarmWorldRequest(world=engine_pb2.WorldSpec(preset="tiny"))
    assert not (await source.ask("WarmWorld", plain)).HasField("row")
    answer = await source.ask("WarmWorld", request(tier="DECODE_TIER_NONE"))
    assert row_from_proto(answer.row).shape == RequestShape("tiny", DecodeTier.NONE)
    assert [one.shape.name for one in source.engine.profiles.rows(0.0)] == ["tiny/none"]
    with pytest.raises(InvalidInput):
        await source.ask("WarmWorld", request(preset="nothing"))


async def test_it_goes_between_the_quanta_of_whoever_plays(source: Harness) -> None:
    await source.open()
    async with source.join(0) as player:
        await player.joined()
        measuring = asyncio.ensure_future(source.ask("WarmWorld", request()))
        blocks = await player.play(0, 4)
        await measuring
    assert [block.block_index for block in blocks] == [0, 1, 2, 3]
    assert source.engine.profiles.rows(0.0)


async def test_a_first_block_teaches_no_row(source: Harness) -> None:
    """Its window is not filled: its quanta are cheaper than those of all that follow."""
    await source.open()
    async with source.join(0) as player:
        await player.joined()
        await player.play(0, 1)
        assert source.engine.profiles.quantum_s(RequestShape("tiny")) == 0.0
        await player.play(1, 2)
    (row,) = source.engine.profiles.rows(0.0)
    assert row.step is not None
    assert (row.step.samples, row.closing.samples) == (6, 2)


async def test_a_model_with_tensors_of_its_own_gets_them_back(
    source: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = owning_world(sets=1)
    loaded = Loaded(model, plan(model.state_spec()))

    async def get(_self: Models, _preset: str) -> Loaded:
        return loaded

    monkeypatch.setattr(Models, "get", get)
    await source.ask("WarmWorld", request())
    assert (len(model.free), model.lent) == (1, [])
    lent = model.lend()
    with pytest.raises(CapacityExhausted):
        await source.ask("WarmWorld", request())
    model.take_back(lent)
    await source.ask("WarmWorld", request())


async def test_a_process_that_is_bound_elsewhere_forgets_its_rows(
    source: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A taskset or a control group's cpuset may change under it: looked at with each renewal."""
    await source.ask("WarmWorld", request())
    await source.upkeep._renew()
    before = source.engine.profiles.binding
    assert source.directory.rows
    elsewhere = {max(before.cpus) + 1}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(elsewhere))
    await source.upkeep._renew()
    assert source.directory.rows == ()
    assert source.engine.profiles.binding.cpus == elsewhere
