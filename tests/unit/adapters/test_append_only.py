"""An append-only loop under the dirty trace: a language model's static cache."""

from __future__ import annotations

from typing import Any, cast

import torch

from tests.language import Decoding, language_model, new_cache, prompt, qwen_config
from tests.unit.state.traces import record
from worldline.adapters.huggingface import tree_of
from worldline.state.inspection import inspection_of
from worldline.state.tree import pack, plan
from worldline.state.update_rule import UpdateRule

STATIC_TOKENS = 256
PROMPT_TOKENS = 64
STEPS = 6


def test_a_static_cache_is_appended_to_and_never_rewritten() -> None:
    """The paper's append-only loop measures 0.000 (section 3.3)."""
    config = qwen_config(num_hidden_layers=2)
    cache = new_cache("static", config, STATIC_TOKENS)
    decoding = Decoding.begin(language_model(config), cache, prompt(config, PROMPT_TOKENS))

    def tree() -> dict[str, Any]:
        return decoding.state(cast(dict[str, Any], tree_of(cache)))

    layout = plan(tree())
    buffer = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    fresh = buffer.clone()  # a static cache begins as zeros
    pack(tree(), layout, buffer)

    def step() -> None:
        decoding.go_on(1)
        pack(tree(), layout, buffer)

    # A token's keys of one head are 128 bytes: coarser granules hold several of them.
    for granule_bytes in (128, 1024):
        steps = (step() for _ in range(STEPS))
        trace = record(layout, buffer, granule_bytes, steps, baseline=fresh)
        caches = [at for at, leaf in enumerate(layout.tensors) if leaf.size_bytes > 4096]
        assert len(caches) == 4
        for writes in trace.writes(caches):
            assert writes.rewritten_bytes == 0
            assert writes.appended_bytes > 0
        # Beside them the next token and the layers' lengths are rewritten, a few bytes.
        inspection = inspection_of(trace)
        assert f"{inspection.rewritten_fraction:.3f}" == "0.000"
        assert inspection.classification.rule is UpdateRule.APPEND_ONLY
