"""Graphs: a pass recorded once for where its tensors lie, then launched as a whole.

A full-size pass is more than two thousand kernels. Launched one by one from Python they keep the
interpreter busy longer than the device; as a CUDA graph they are one call.

A graph holds addresses: of the state it reads and writes, and of inputs that every launch copies
into place. It is kept under those addresses, so a session whose state comes to lie where one lay
before finds its graph there; nothing else of a session is in it, and none is ever launched for a
state that is somewhere else. What was recorded decides no bit: a launch gives what the kernels one
by one would have given.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from services.engine.model.transformer import PassInputs
from services.engine.model.window import Spans
from services.engine.world import StateTree

#: Two for each session (the window fills, the window is full), and some sessions.
GRAPHS_MOST = 64

Pass = Callable[[StateTree, Spans, PassInputs], Tensor]
#: The spans, and the address of every tensor of the state.
Place = tuple[Spans, tuple[int, ...]]


@dataclass(frozen=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    result: Tensor


class Graphs:
    """The recorded passes of one model on one device. Used by one thread, as models are."""

    def __init__(self, run: Pass, device: torch.device, most: int = GRAPHS_MOST) -> None:
        self._run = run
        self._device = device
        self._most = most
        self._recorded: OrderedDict[Place, _Recorded] = OrderedDict()
        self._ready: set[Spans] = set()
        self._inputs: PassInputs | None = None
        # What a pass needs in between: shared, since no two launches are under way at once and
        # nothing of one is read after it.
        self._pool: Any = None

    def launch(self, state: StateTree, spans: Spans, inputs: PassInputs) -> Tensor:
        """The pass on this state, queued on the current stream; its result, a tensor of its own."""
        place = (spans, _addresses(state))
        own = self._take(inputs)
        recorded = self._recorded.get(place)
        if recorded is None:
            recorded = self._record(state, spans, own)
            self._recorded[place] = recorded
            while len(self._recorded) > self._most:
                self._recorded.popitem(last=False)
        self._recorded.move_to_end(place)
        recorded.graph.replay()
        return recorded.result.clone()

    def _take(self, inputs: PassInputs) -> PassInputs:
        """Copy them to where the graphs read them."""
        if self._inputs is None:
            copies = {field.name: getattr(inputs, field.name).clone() for field in fields(inputs)}
            self._inputs = PassInputs(**copies)
            self._pool = torch.cuda.graph_pool_handle()
        else:
            for mine, theirs in zip(self._inputs.tensors(), inputs.tensors(), strict=True):
                mine.copy_(theirs)
        return self._inputs

    def _record(self, state: StateTree, spans: Spans, inputs: PassInputs) -> _Recorded:
        side = torch.cuda.Stream(self._device)
        side.wait_stream(torch.cuda.current_stream(self._device))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            if spans not in self._ready:
                # Libraries load and compile at the first call, which cannot be recorded. A pass
                # may run twice: it writes the same again.
                self._run(state, spans, inputs)
                self._ready.add(spans)
            result = torch.empty_like(inputs.latents)
            # Other threads may use the device meanwhile: their calls are not this graph's.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result.copy_(self._run(state, spans, inputs))
            finally:
                graph.capture_end()
        torch.cuda.current_stream(self._device).wait_stream(side)
        return _Recorded(graph, result)


def _addresses(tree: Any) -> tuple[int, ...]:
    """Of every tensor, in the tree's order."""
    if isinstance(tree, Tensor):
        return (tree.data_ptr(),)
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        return ()
    return tuple(address for child in tree for address in _addresses(child))
