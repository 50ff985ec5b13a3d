"""Graph world: a preset at full size on a GPU, in bfloat16, its passes launched as graphs.

The products and attention kernels are torch's own (`scaled_dot_product_attention`), what lies
between them is compiled, and a pass is one CUDA graph. Measured in docs/serving.md.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from functools import partial

from torch import Tensor

from services.engine.model.causal import CausalWorld
from services.engine.model.decoder import DecodeInputs, decode
from services.engine.model.graphs import Graphs
from services.engine.model.pointwise import compiled
from services.engine.model.transformer import PassInputs, predict
from services.engine.model.weights import Weights, in_bfloat16
from services.engine.model.window import Spans
from services.engine.world import StateTree
from worldline.errors import Unavailable

#: What Triton looks for to build the stubs that launch its kernels.
_COMPILERS = ("cc", "gcc", "clang")


class GraphWorld(CausalWorld):
    """A `WorldModel` of float32 `weights` on a GPU; the same state tree as its CPU twin's."""

    #: A window that fills, and one that is full.
    warm_blocks = 2

    def __init__(self, weights: Weights) -> None:
        narrow = in_bfloat16(weights)
        super().__init__(narrow, compiled(narrow.dtype))
        self._passes: Graphs[Spans, PassInputs] = Graphs(
            partial(predict, narrow, self.pointwise), self._device, repeats=True
        )
        self._decodings: Graphs[str, DecodeInputs] = Graphs(
            lambda state, _, inputs: decode(narrow, state, inputs), self._device, repeats=False
        )

    def passes(self, state: StateTree, spans: Spans) -> Callable[[PassInputs], Tensor]:
        """See `CausalWorld`.

        Recorded when they are first launched in a place, with a session's first block while its
        window fills and with the next once it is full: nothing interrupts a recording, and two in
        one quantum would hold up other sessions for as long as both.
        """
        return self._passes.at(state, spans)

    def decode(self, state: StateTree, inputs: DecodeInputs) -> Tensor:
        """See `CausalWorld`."""
        read = {name: state[name] for name in ("decoder", "first_frame")}
        return self._decodings.at(read, "block")(inputs)


def graph_world(weights: Weights) -> GraphWorld:
    """A `GraphWorld` of these weights.

    Raises:
        Unavailable: `COMPILER_MISSING`.
    """
    missing = _missing()
    if missing:
        raise Unavailable(
            f"{weights.config.name} compiles kernels for its GPU when it is first played, and "
            f"there is no {missing}: install it where the engine runs",
            reason="COMPILER_MISSING",
            field="world.preset",
        )
    # The kernels are a dozen: no processes beside the engine's for them.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    return GraphWorld(weights)


def _missing() -> str:
    if importlib.util.find_spec("triton") is None:
        return "triton"
    named = os.environ.get("CC")
    if any(shutil.which(one) for one in ((named,) if named else _COMPILERS)):
        return ""
    return f"C compiler {named} (named by CC)" if named else "C compiler (gcc or clang)"
