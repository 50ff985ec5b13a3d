"""Fixtures for Hugging Face caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.language import Decoding, language_model, new_cache, prompt
from tests.unit.adapters.huggingface.caches import CONFIG, STATIC_TOKENS, WINDOW


@pytest.fixture(scope="package")
def model() -> Any:
    return language_model(CONFIG)


@pytest.fixture
def decode(model: Any) -> Callable[..., Decoding]:
    def decode(kind: str, tokens: int = 2 * WINDOW) -> Decoding:
        cache = new_cache(kind, CONFIG, STATIC_TOKENS)
        return Decoding.begin(model, cache, prompt(CONFIG, tokens))

    return decode
