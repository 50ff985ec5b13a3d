"""Self-check: models that do not repeat themselves are found, whatever the reason."""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest
import torch

from services.engine.chores import Chores
from services.engine.device import CPU_DEVICE, EngineDevice
from services.engine.doctor import engine_facts
from services.engine.model.causal import CausalWorld
from services.engine.model.config import MG2, TINY
from services.engine.model.dirty import DirtyWorld
from services.engine.model.weights import build_weights
from services.engine.models import Loaded
from services.engine.privateslot import PrivateSlot, private_bytes
from services.engine.selfcheck import SMALL_BYTES, Plan, SelfCheck, SelfChecks, check, plan_of
from services.engine.settings import EngineSettings
from services.engine.worker import Worker
from services.engine.world import NO_FRAMES, Action, Frames, StateTree
from tests.unit.engine.owning import owning_world
from tests.unit.engine.support import Harness, SlotServer, contract_of, twin_digests
from tests.unit.engine.test_moves import attach_request, push
from tests.unit.engine.unsteady import Counting, Drawing, Flickering, Sharing, Tampered
from worldline.contract import DeterminismTier, contract_to_proto
from worldline.errors import CapacityExhausted, Conflict
from worldline.state.tree import plan
from worldline.v1 import engine_pb2

T1 = DeterminismTier.T1_SCHEDULE_STABLE


@pytest.fixture
async def chores():
    """Where no loop attends them, their parts follow each other."""
    worker = Worker(1)
    yield Chores(worker)
    worker.close()


def loaded(model: CausalWorld) -> Loaded:
    return Loaded(model, plan(model.state_spec()))


def tiny() -> CausalWorld:
    return CausalWorld(build_weights(TINY, 0, torch.device("cpu")))


async def test_a_world_that_repeats_itself_is_equal(chores: Chores) -> None:
    assert await check(chores, loaded(tiny())) == SelfCheck("tiny")
    assert await check(chores, loaded(Tampered())) == SelfCheck("tiny")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Counting, "generated again: block 0: leaf kv_cache[1].k differs"),
        (Drawing, "generated again: block 0: leaf "),
        (Sharing, "generated again with another world's quanta in between: block 0: leaf"),
        (Flickering, "generated again: block 0: its frames differ"),
    ],
)
async def test_one_that_does_not_is_found_and_said_where(
    model: type[Tampered], said: str, chores: Chores
) -> None:
    found = await check(chores, loaded(model()))
    assert found.differs.startswith(said), found


async def test_it_is_made_once_a_preset_and_refuses_t0_alone(chores: Chores) -> None:
    checks, model = SelfChecks(chores), Counting()
    assert checks.done == ()
    with pytest.raises(Conflict, match="twice with the same bits") as caught:
        await checks.admit(loaded(model), contract_of())
    assert caught.value.reason == "NOT_DETERMINISTIC"
    assert caught.value.field == "contract.determinism_tier"
    generated = model.blocks
    await checks.admit(loaded(model), contract_of(determinism_tier=T1))
    with pytest.raises(Conflict):
        await checks.admit(loaded(model), contract_of(tier_drop_allowed=True))
    assert model.blocks == generated
    (done,) = checks.done
    assert done.differs


async def test_tensors_of_an_owning_model_are_given_back(chores: Chores) -> None:
    for sets in (1, 2, 3):  # with one alone nothing can come in between
        model = owning_world(sets)
        assert await check(chores, loaded(model)) == SelfCheck("tiny")
        assert len(model.free) == sets
    with pytest.raises(CapacityExhausted):
        await SelfChecks(chores).of(loaded(owning_world(0)))


@pytest.fixture
async def engine(servers: list[SlotServer]):
    async with Harness(servers[0]) as harness:
        harness.engine.self_checks = SelfChecks(harness.chores)
        yield harness


def serve(engine: Harness, model: CausalWorld) -> None:
    """From now on this is the engine's `tiny`."""
    engine.engine._models._loaded["tiny"] = loaded(model)


async def test_an_engine_opens_no_t0_world_of_a_preset_that_differs(engine: Harness) -> None:
    serve(engine, Counting())
    for facts in ({}, {"tier_drop_allowed": True}):  # a drop that is allowed is not made here
        with pytest.raises(Conflict) as caught:
            await engine.open(**facts)
        assert caught.value.reason == "NOT_DETERMINISTIC"
    assert engine.engine.sessions == {}
    assert engine.slots.free == [0, 1, 2, 3]
    await engine.open(determinism_tier=T1)


async def test_it_says_so_when_it_warms_to_the_directory_and_to_the_doctor(
    engine: Harness,
) -> None:
    serve(engine, Counting())
    request = engine_pb2.WarmWorldRequest(world=engine_pb2.WorldSpec(preset="tiny", seed=1))
    answer = await engine.ask("WarmWorld", request)
    assert answer.self_check.preset == "tiny"
    assert "kv_cache[1].k" in answer.self_check.differs
    await engine.upkeep._renew()
    (told,) = engine.directory.self_checks
    assert (told.preset, told.differs) == ("tiny", answer.self_check.differs)
    settings = EngineSettings(placement_address="127.0.0.1:1", mover_address="127.0.0.1:1")
    facts = engine_facts(settings, CPU_DEVICE, engine.engine)
    assert facts.self_checks == {"tiny": answer.self_check.differs}


async def test_a_preset_that_repeats_itself_is_opened_at_t0(engine: Harness) -> None:
    await engine.open()
    assert engine.engine.self_checks is not None
    assert engine.engine.self_checks.done == (SelfCheck("tiny"),)
    # What was generated for the check is nobody's: the world begins as its twin did.
    async with engine.join(0) as player:
        await player.joined()
        blocks = await player.play(0, 2)
    assert [(one.state_digest, one.frames_digest) for one in blocks] == twin_digests(2)


async def test_a_t0_world_does_not_arrive_where_its_preset_differs(
    engine: Harness, target: Harness
) -> None:
    await engine.open()
    frozen = await engine.freeze()
    target.engine.self_checks = SelfChecks(target.chores)
    serve(target, Counting())
    slot = await push(engine, target, frozen)
    with pytest.raises(Conflict) as caught:
        await target.ask("Attach", attach_request(frozen, slot))
    assert caught.value.reason == "NOT_DETERMINISTIC"
    assert target.engine.sessions == {}
    frozen.manifest.determinism_tier = T1
    contract = contract_to_proto(contract_of(determinism_tier=T1))
    await target.ask("Attach", attach_request(frozen, slot, contract=contract))


async def test_without_memory_for_a_check_t0_is_refused_by_name_and_t1_is_not(
    engine: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device whose slots take all of it: nobody's fault, and no failure of the model."""
    engine.engine.self_checks = SelfChecks(engine.chores)

    def nothing_left(size_bytes: int, device: EngineDevice) -> torch.Tensor:
        return private_bytes(1 << 62, device)

    monkeypatch.setattr("services.engine.privateslot.private_bytes", nothing_left)
    with pytest.raises(CapacityExhausted, match="fewer slots") as caught:
        await engine.open()
    assert caught.value.reason == "NO_PRIVATE_MEMORY"
    assert caught.value.retry_after_ms > 0
    assert engine.engine.sessions == {}
    assert engine.slots.free == [0, 1, 2, 3]
    await engine.open(determinism_tier=T1)
    monkeypatch.undo()
    await engine.open("s2")


def test_large_states_are_checked_for_one_block() -> None:
    assert loaded(tiny()).layout.extent_bytes <= SMALL_BYTES
    assert plan_of(SMALL_BYTES, 4) == Plan(2, (False, True))
    assert plan_of(SMALL_BYTES + 1, 4) == Plan(1, (True,))
    # Nothing can come between the quanta of a block that has one.
    assert plan_of(SMALL_BYTES + 1, 1) == Plan(1, (False,))


class Careless(DirtyWorld):
    """A state-only world that draws from torch's global generator besides its own."""

    def block(self, state: StateTree, action: Action, steps: int) -> Generator[None, None, Frames]:
        yield from super().block(state, action, steps)
        state["kv_cache"][0]["k"].copy_(torch.randn(state["kv_cache"][0]["k"].shape))
        return NO_FRAMES


async def test_of_a_state_without_compute_one_layer_is_generated(
    chores: Chores, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    class Counted(PrivateSlot):
        def __init__(self, size_bytes: int, device: EngineDevice) -> None:
            taken.append(size_bytes)
            super().__init__(size_bytes, device)

    monkeypatch.setattr("services.engine.selfcheck.PrivateSlot", Counted)
    whole = loaded(DirtyWorld(MG2))
    assert await check(chores, whole) == SelfCheck("mg2")
    assert len(taken) == 2
    assert max(taken) < whole.layout.extent_bytes / 20
    # No other kind of leaf, and none of another shape, than the whole state has.
    sampled = loaded(DirtyWorld(MG2).sample())
    assert _kinds(sampled) == _kinds(whole)
    found = await check(chores, loaded(Careless(MG2)))
    assert found.differs.startswith("generated again: block 0: leaf kv_cache[0].k differs")


def _kinds(of: Loaded) -> set[tuple[object, ...]]:
    return {
        (re.sub(r"\[[0-9]+\]", "[]", leaf.path), leaf.dtype, leaf.shape)
        for leaf in of.layout.tensors
    }
