"""Blanks: what looking for zeros on a GPU costs, and a state that has played beside one without."""

from __future__ import annotations

import re
import time

import torch

from bench.contestant import Contestant, Failed
from bench.payload import Payload, digest, leaf_views
from services.engine.model.config import preset
from services.mover.blanks import Blanks, find_blanks, write_blanks
from services.mover.memory.cuda import CudaMemory
from services.mover.memory.host import HostMemory
from worldline.errors import WorldlineError
from worldline.state.layout import Layout, TensorLeaf

#: A figure of each look: making zeros of what it found.
WRITE_MS = "write_ms"
_ACTION_CACHE = re.compile(r"kv_cache_(?:mouse|keyboard)\[(\d+)\]\.")


def unwritten(name: str, layout: Layout) -> list[TensorLeaf]:
    """The leaves of a preset's state that no block writes: caches of unwired action modules."""
    wired = preset(name).action_layers
    matched = ((leaf, _ACTION_CACHE.match(leaf.path)) for leaf in layout.tensors)
    return [leaf for leaf, found in matched if found is not None and int(found[1]) >= wired]


class Played(Payload):
    """A payload as blocks leave it, with zeros where none writes. Beside it one without zeros."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, seed)
        self.full = Payload(name, seed)
        view = self._source.part(0, self.layout.extent_bytes)
        for leaf in unwritten(name, self.layout):
            view[leaf.offset_bytes : leaf.end_bytes] = bytes(leaf.span_bytes)
        self.digest = digest(leaf_views(self.layout, view))

    @property
    def blanks(self) -> Blanks:
        """By the host's own look."""
        memory: HostMemory = self._source
        return find_blanks(memory, self.layout.extent_bytes)

    def close(self) -> None:
        """Give the memory of both back."""
        self.full.close()
        super().close()


class Looks(Contestant):
    """Looks for zeros in a slot on a device; by the clock of the thread that asks."""

    def __init__(self, name: str, device: str, payload: Played) -> None:
        super().__init__(name)
        self._device = device
        self._payload = payload
        self._memory: CudaMemory | None = None

    def prepare(self) -> None:
        """See `Contestant.prepare`."""
        self._wanted = self._payload.blanks
        extent_bytes = self._payload.layout.extent_bytes
        self._memory = CudaMemory(self._device, extent_bytes)
        self._payload.copy_to(self._memory.whole.tensor())
        torch.cuda.synchronize(self._memory.index)
        self.run()

    def run(self) -> float:
        """See `Contestant.run`."""
        memory, extent_bytes = self._memory, self._payload.layout.extent_bytes
        if memory is None:
            raise Failed("it was not prepared")
        try:
            begun_s = time.perf_counter()
            found = find_blanks(memory, extent_bytes)
            looked_s = time.perf_counter()
            write_blanks(memory, found, extent_bytes)
            written_s = time.perf_counter()
        except WorldlineError as error:
            raise Failed(f"{type(error).__name__}: {error}") from error
        if found != self._wanted:
            raise Failed(f"found {found.granule_count} granules of {self._wanted.granule_count}")
        self.figures = {WRITE_MS: (written_s - looked_s) * 1e3}
        self.note = f"{found.granule_count} granules in {len(found.runs)} runs"
        return looked_s - begun_s

    def close(self) -> None:
        """See `Contestant.close`."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()
