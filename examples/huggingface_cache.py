"""A Hugging Face cache leaves its process as bytes, and decoding goes on from what arrived.

The model is small and its weights are drawn from a seed: nothing is downloaded. Here the slot is
ordinary memory; an engine uses a slot of its node's mover, which moves and verifies it.
"""

import torch
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

from worldline.adapters.huggingface import cache_from, tree_of
from worldline.state.digest import digest_slot
from worldline.state.tree import materialize, pack, plan

torch.manual_seed(7)
heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
config = Qwen2Config(vocab_size=512, hidden_size=128, num_hidden_layers=4, **heads)
model = Qwen2ForCausalLM(config).eval()


@torch.no_grad()
def decode(token: torch.Tensor, cache: DynamicCache, steps: int) -> list[int]:
    """Greedy decoding from `token` on."""
    tokens = []
    for _ in range(steps):
        tokens.append(int(token))
        token = model(token, past_key_values=cache).logits[:, -1].argmax(-1, keepdim=True)
    return tokens


cache, prompt = DynamicCache(config=config), torch.randint(512, (1, 40))
with torch.no_grad():
    token = model(prompt, past_key_values=cache).logits[:, -1].argmax(-1, keepdim=True)

# At the source: everything that decides the next token, laid out and packed into a slot.
state = {"cache": tree_of(cache), "token": token}
layout = plan(state)
slot = bytearray(layout.extent_bytes)
layout = pack(state, layout, torch.frombuffer(slot, dtype=torch.uint8))
sent = digest_slot(layout, memoryview(slot))

# At the target: the bytes, the layout and the digests have come; the model was there before.
landed = bytearray(slot)
if digest_slot(layout, memoryview(landed)) != sent:
    raise SystemExit("the bytes differ: nothing is installed")
there = materialize(layout, torch.frombuffer(landed, dtype=torch.uint8))
moved = decode(there["token"], cache_from(there["cache"], config), steps=16)

stayed = decode(token, cache, steps=16)
print(f"{layout.extent_bytes:,} bytes in {len(layout.tensors)} tensors, {sent.whole:016x}")
print("stayed:", stayed)
print("moved: ", moved)
print("equal" if moved == stayed else "DIFFERENT")
