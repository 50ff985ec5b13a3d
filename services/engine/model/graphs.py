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
from collections.abc import Callable, Hashable
from dataclasses import fields
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from services.engine.world import StateTree

#: Two for each session (the window fills, the window is full), and some sessions.
GRAPHS_MOST = 64

#: A frozen dataclass of tensors, whose shapes are the same at every launch.
Inputs = TypeVar("Inputs", bound=Any)
#: What else the kernels depend on.
Variant = TypeVar("Variant", bound=Hashable)
#: A variant, and the address of every tensor of the state.
Place = tuple[Variant, tuple[int, ...]]


class Graphs(Generic[Variant, Inputs]):
    """A function of state and inputs, recorded. Used by one thread, as models are.

    It works on one device and waits for nothing. `repeats`: run twice it writes the same again;
    what does not is rehearsed on a copy of the state.
    """

    def __init__(
        self,
        run: Callable[[StateTree, Variant, Inputs], Tensor],
        device: torch.device,
        *,
        repeats: bool,
        most: int = GRAPHS_MOST,
    ) -> None:
        self._run = run
        self._device = device
        self._repeats = repeats
        self._most = most
        self._graphs: OrderedDict[Place[Variant], torch.cuda.CUDAGraph] = OrderedDict()
        self._ready: set[Variant] = set()
        # Where every graph reads and writes what is not state. Only launched one after another.
        self._inputs: Any = None
        self._result: Any = None
        self._pool: Any = None

    def at(self, state: StateTree, variant: Variant) -> Callable[[Inputs], Tensor]:
        """The function there. A call queues it on the current stream and returns its result, a
        tensor of the caller's own. No tensor of the state may be replaced between two calls.
        """
        return partial(self._launch, state, variant, (variant, _addresses(state)))

    def _launch(
        self, state: StateTree, variant: Variant, place: Place[Variant], inputs: Inputs
    ) -> Tensor:
        placed = self._place(inputs)
        if place not in self._graphs:
            self._record(state, variant, place, placed)
        self._graphs.move_to_end(place)
        self._graphs[place].replay()
        result: Tensor = self._result.clone()
        return result

    def _place(self, inputs: Inputs) -> Any:
        """Copy them to where the graphs read them."""
        given = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
        if self._inputs is None:
            copies = {name: tensor.clone() for name, tensor in given.items()}
            self._inputs = type(inputs)(**copies)
        else:
            for name, tensor in given.items():
                getattr(self._inputs, name).copy_(tensor)
        return self._inputs

    def _record(
        self, state: StateTree, variant: Variant, place: Place[Variant], inputs: Inputs
    ) -> None:
        current = torch.cuda.current_stream(self._device)
        side = torch.cuda.Stream(self._device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            self._rehearse(state, variant, inputs)
            graph = self._capture(state, variant, inputs)
        current.wait_stream(side)
        self._graphs[place] = graph
        if len(self._graphs) > self._most:
            self._graphs.popitem(last=False)

    def _rehearse(self, state: StateTree, variant: Variant, inputs: Inputs) -> None:
        """Libraries load and compile at a first call, which cannot be recorded: make it."""
        if variant in self._ready:
            return
        result = self._run(state if self._repeats else _copy(state), variant, inputs)
        if self._result is None:
            self._result = torch.empty_like(result)
            self._pool = torch.cuda.graph_pool_handle()
        self._ready.add(variant)

    def _capture(self, state: StateTree, variant: Variant, inputs: Inputs) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # One pool for all: nothing in it outlives a launch. Other threads may use the device
        # meanwhile: what they do is not this graph's.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            self._result.copy_(self._run(state, variant, inputs))
        finally:
            graph.capture_end()
        return graph


def _copy(tree: Any) -> Any:
    """The same tree of tensors of its own."""
    if isinstance(tree, Tensor):
        return tree.clone()
    if isinstance(tree, dict):
        return {name: _copy(child) for name, child in tree.items()}
    return [_copy(child) for child in tree] if isinstance(tree, (list, tuple)) else tree


def _addresses(tree: Any) -> tuple[int, ...]:
    """Of every tensor, in the tree's order."""
    if isinstance(tree, Tensor):
        return (tree.data_ptr(),)
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        return ()
    return tuple(address for child in tree for address in _addresses(child))
