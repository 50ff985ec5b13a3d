"""The model-blind proof between two GPUs (see `tests/language_move.py`), and fixed addresses."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from services.engine.device import describe_device, fix_numerics
from tests.language import Decoding, language_model, new_cache, prompt, qwen_config
from tests.language_move import (
    KINDS,
    Road,
    check_that_decoding_goes_on,
    check_that_one_bit_matters,
    road,
)
from worldline.adapters.huggingface import copy_into, tree_of
from worldline.cuda.devices import devices
from worldline.state.tree import materialize, pack, plan

needs_two = pytest.mark.skipif(
    len(devices()) < 2, reason=f"needs two GPUs, there are {len(devices())}"
)


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[asyncio.Runner, Road]]:
    """The road from the first GPU to the second, and the loop that everything on it runs in."""
    source, target = describe_device("cuda:0"), describe_device("cuda:1")
    fix_numerics(source)
    source.enter()
    with asyncio.Runner() as runner:
        opened = road(tmp_path_factory.mktemp("movers"), source, target)
        made = runner.run(opened.__aenter__())
        yield runner, made
        runner.run(opened.__aexit__(None, None, None))


@needs_two
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_decoding_goes_on_token_for_token(
    way: tuple[asyncio.Runner, Road], kind: str
) -> None:
    runner, made = way
    runner.run(check_that_decoding_goes_on(made, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_one_state_decodes_to_the_same_bits_every_time(kind: str) -> None:
    """Without it a state that moved is no worse than one that stayed, and nothing can be proved."""
    device = describe_device("cuda:0")
    fix_numerics(device)
    device.enter()
    model = language_model(qwen_config(), device.name)
    begun = Decoding.begin(
        model, new_cache(kind, model.config), prompt(model.config, 600, device.name)
    )
    heard = set()
    for _ in range(16):
        again = Decoding(model, copy.deepcopy(begun.cache), begun.next_token)
        heard.add(tuple(again.go_on(24).logits))
    assert len(heard) == 1


@needs_two
@pytest.mark.parametrize("kind", KINDS)
def test_one_bit_is_refused_and_would_have_been_heard(
    way: tuple[asyncio.Runner, Road], kind: str
) -> None:
    runner, made = way
    runner.run(check_that_one_bit_matters(made, kind))


def test_a_captured_graph_goes_on_with_a_state_that_was_copied_in() -> None:
    """Fault 30: the graph holds addresses; a state that comes by copy leaves them as they are."""
    device = describe_device("cuda:0")
    fix_numerics(device)
    device.enter()
    model = language_model(qwen_config(), device.name)
    source = _decoding(model, tokens=300)
    held = _decoding(model, tokens=7)
    step = CapturedStep(model, held.cache)
    state = source.state(tree_of(source.cache))
    layout = plan(state)
    slot = torch.empty(layout.extent_bytes, dtype=torch.uint8, device=device.name)
    tree: Any = materialize(pack(state, layout, slot), slot)
    copy_into(tree["cache"], held.cache)
    token, tokens = tree["next_token"], []
    for _ in range(12):
        tokens.append(int(token))
        token = step(token)
    assert tokens == source.go_on(12).tokens
    assert len(set(tokens)) > 6, "a model that repeats itself proves nothing"


def _decoding(model: Any, tokens: int) -> Decoding:
    ids = prompt(model.config, tokens, "cuda:0")
    return Decoding.begin(model, new_cache("static", model.config), ids)


class CapturedStep:
    """One decoding step as a CUDA graph over a static cache: token in, token out."""

    def __init__(self, model: Any, cache: Any) -> None:
        self._token = torch.zeros(1, 1, dtype=torch.int64, device="cuda:0")
        kept = copy.deepcopy(cache)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries set themselves up outside of the capture
            self._run(model, kept)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._next = self._run(model, cache)

    def _run(self, model: Any, cache: Any) -> torch.Tensor:
        with torch.no_grad():
            output = model(self._token, past_key_values=cache, use_cache=True)
        chosen: torch.Tensor = output.logits[:, -1].argmax(-1, keepdim=True)
        return chosen

    def __call__(self, token: torch.Tensor) -> torch.Tensor:
        self._token.copy_(token)
        self._graph.replay()
        return self._next.clone()
