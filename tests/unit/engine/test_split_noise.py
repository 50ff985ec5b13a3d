"""Noise of branches: a pure function of the parent's and a number, and never one stream twice."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.engine.model.config import TINY
from services.engine.model.dirty import DirtyWorld
from services.engine.model.noise import SessionNoise, seed_noise, split_noise
from services.engine.model.state import GENERATOR_BYTES
from services.engine.world import SplitsNoise
from tests.unit.engine.support import PrivateState, script, tiny_world
from worldline.errors import InvalidInput

SEEDS = st.integers(0, 2**64 - 1)
BRANCHES = st.integers(0, 2**32 - 1)


def parent_of(seed: int, drawn: int = 0) -> torch.Tensor:
    """A generator's leaf, some draws after its seed; an odd number leaves a normal kept."""
    leaf = torch.zeros(GENERATOR_BYTES, dtype=torch.uint8)
    generator = seed_noise(leaf, seed)
    torch.randn(drawn, generator=generator)
    leaf.copy_(generator.get_state())
    return leaf


def branch_of(parent: torch.Tensor, number: int) -> torch.Tensor:
    leaf = parent.clone()
    split_noise(leaf, number)
    return leaf


def draws(leaf: torch.Tensor) -> torch.Tensor:
    return SessionNoise(leaf.clone()).normal((64,))


def words_of(leaf: torch.Tensor) -> npt.NDArray[np.uint64]:
    words: npt.NDArray[np.uint64] = leaf.numpy()[24 : 24 + 624 * 8].view(np.uint64)
    return words


@given(SEEDS, st.integers(0, 1_300), BRANCHES)
def test_equal_parents_and_numbers_give_equal_noise(seed: int, drawn: int, number: int) -> None:
    parent = parent_of(seed, drawn)
    before = parent.clone()
    one, other = branch_of(parent, number), branch_of(parent_of(seed, drawn), number)
    assert torch.equal(one, other)
    assert torch.equal(parent, before)
    assert not torch.equal(draws(one), draws(parent))


@given(SEEDS, st.integers(0, 1_300), st.lists(BRANCHES, min_size=2, max_size=8, unique=True))
def test_no_two_branches_share_noise(seed: int, drawn: int, numbers: list[int]) -> None:
    parent = parent_of(seed, drawn)
    streams = [parent, *(branch_of(parent, number) for number in numbers)]
    # Of a branch's own branches as well.
    streams += [branch_of(leaf, numbers[0]) for leaf in streams[1:]]
    first = {draws(leaf).numpy().tobytes() for leaf in streams}
    assert len(first) == len(streams)


@given(SEEDS, st.integers(0, 700), BRANCHES)
def test_a_parent_that_drew_once_more_has_other_branches(
    seed: int, drawn: int, number: int
) -> None:
    one, other = parent_of(seed, drawn), parent_of(seed, drawn + 16)
    assert not torch.equal(branch_of(one, number), branch_of(other, number))


def test_a_branch_is_more_than_a_seed() -> None:
    """torch keeps 32 bits of a seed, of which every word follows: too few for many branches."""
    assert torch.equal(draws(parent_of(7)), draws(parent_of(7 + 2**32)))
    words = words_of(branch_of(parent_of(7), 0))
    seeded = words_of(parent_of(int(words[0])))
    assert words[0] == seeded[0]
    assert (words[1:] != seeded[1:]).all()


def test_the_words_are_where_torch_reads_them() -> None:
    """An mt19937 of numpy's with the same 624 words draws the same numbers."""
    leaf = branch_of(parent_of(3, 5), 9)
    words = words_of(leaf)
    assert int(words.max()) < 2**32
    oracle = np.random.MT19937()
    oracle.state = {"bit_generator": "MT19937", "state": {"key": words.astype("u4"), "pos": 624}}
    expected = [int(value) % 2**20 for value in oracle.random_raw(2_000)]
    found = torch.randint(0, 2**20, (2_000,), generator=SessionNoise(leaf).generator)
    assert found.tolist() == expected


def test_what_holds_no_generator_is_named() -> None:
    with pytest.raises(InvalidInput) as caught:
        split_noise(torch.zeros(16, dtype=torch.uint8), 0)
    assert caught.value.leaf == "noise.generator"


def test_a_branch_differs_in_its_generator_and_from_the_next_block_on() -> None:
    model = tiny_world()
    parent = PrivateState(model)
    parent.block(script(0))
    same, other = parent.copy(), parent.copy()
    model.split(other.tree, 0)
    assert same.digest() == parent.digest() != other.digest()
    # Nothing but the generator was touched.
    other.tree["noise"]["generator"].copy_(parent.tree["noise"]["generator"])
    assert other.digest() == parent.digest()
    model.split(other.tree, 0)
    for index in (1, 2):
        frames = [one.block(script(index)).pixels for one in (parent, same, other)]
        assert frames[0] == frames[1] != frames[2]
        assert parent.digest() == same.digest() != other.digest()


def test_both_worlds_split() -> None:
    assert isinstance(tiny_world(), SplitsNoise)
    world = DirtyWorld(TINY)
    assert isinstance(world, SplitsNoise)
    parent = PrivateState(world)
    other = parent.copy()
    world.split(other.tree, 1)
    parent.block(script(0))
    other.block(script(0))
    assert parent.digest() != other.digest()
