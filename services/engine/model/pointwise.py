"""Pointwise: what a pass does between its matrix products, plain or one kernel each.

Plain, each of these is several kernels that read and write everything: of a full-size pass on an
H200 they take a third. Compiled they take a fifth (docs/serving.md). Sums are float32 in either; a
compiled one adds in another order, so that the two give different bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as functional
from torch import Tensor

from services.engine.model.rotary import rotate, rotate_pairs

Function = TypeVar("Function", bound=Callable[..., Any])
#: The residual stream behind an update, and what the next product reads of it.
Advanced = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Pointwise:
    """The functions. `hidden`, the residual stream, is float32 (tokens, dim) and stays so.

    Whatever else they return has the dtype that products are made in. `shift`, `scale` and `gate`
    (dim) are a block's own at one noise level.
    """

    #: hidden, shift, scale: its layer norm, scaled and shifted.
    modulated: Callable[[Tensor, Tensor, Tensor], Tensor]
    #: hidden, gate, update: hidden + gate * update.
    gated: Callable[[Tensor, Tensor, Tensor], Tensor]
    #: The same, and its layer norm.
    gated_normed: Callable[[Tensor, Tensor, Tensor], Advanced]
    #: hidden, update: their sum, and its layer norm.
    added_normed: Callable[[Tensor, Tensor], Advanced]
    #: hidden, update, shift, scale: their sum, and its layer norm, scaled and shifted.
    added_modulated: Callable[[Tensor, Tensor, Tensor, Tensor], Advanced]
    #: (..., heads, channels): each channel vector at unit mean square.
    unit: Callable[[Tensor], Tensor]
    #: (..., positions, heads, channels) and their turns: at unit mean square, then rotated.
    turned: Callable[[Tensor, Tensor], Tensor]
    #: The same, written into the first argument.
    write_turned: Callable[[Tensor, Tensor, Tensor], None]
    #: Attention over a handful of positions, (batch, positions, heads, channels) each.
    attend_frames: Callable[[Tensor, Tensor, Tensor], Tensor]


def plain(dtype: torch.dtype) -> Pointwise:
    """Each as torch's own kernels; products are made in `dtype`."""

    def turned(values: Tensor, turns: Tensor) -> Tensor:
        return rotate(_unit32(values), turns).to(values.dtype)

    return _functions(dtype, turned, attend)


def compiled(dtype: torch.dtype, backend: str = "inductor") -> Pointwise:
    """Each as one kernel, compiled at its first call with each shape."""
    # How a sum is split must not follow from what was fastest when it was tried out.
    options: Any = {"deterministic": True} if backend == "inductor" else None

    def turned(values: Tensor, turns: Tensor) -> Tensor:
        return rotate_pairs(_unit32(values), turns).to(values.dtype)

    def one(function: Function) -> Function:
        # What cannot be one graph is an error, not a slow path that nobody asked for.
        made: Any = torch.compile(
            function, fullgraph=True, dynamic=False, backend=backend, options=options
        )
        return cast(Function, made)

    each = _functions(dtype, turned, attend_frames)
    return Pointwise(**{field.name: one(getattr(each, field.name)) for field in fields(each)})


def _functions(
    dtype: torch.dtype,
    turned: Callable[[Tensor, Tensor], Tensor],
    attend_few: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Pointwise:
    def normed(hidden: Tensor) -> Advanced:
        return hidden, _normed(hidden).to(dtype)

    def modulated(hidden: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        return torch.addcmul(shift, _normed(hidden), 1 + scale).to(dtype)

    def added_modulated(hidden: Tensor, update: Tensor, shift: Tensor, scale: Tensor) -> Advanced:
        hidden = hidden + update
        return hidden, modulated(hidden, shift, scale)

    def write_turned(target: Tensor, values: Tensor, turns: Tensor) -> None:
        target.copy_(turned(values, turns))

    return Pointwise(
        modulated=modulated,
        gated=_gated,
        gated_normed=lambda hidden, gate, update: normed(_gated(hidden, gate, update)),
        added_normed=lambda hidden, update: normed(hidden + update),
        added_modulated=added_modulated,
        unit=_unit,
        turned=turned,
        write_turned=write_turned,
        attend_frames=attend_few,
    )


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(batch, positions, heads, channels) each; keys and values are read in the query's dtype.

    Caches are bfloat16 views of a slot. The copies made here for a float32 query are aligned alike
    in every process, so the matrix products are too.
    """
    heads_first = (
        query.transpose(1, 2),
        key.to(query.dtype).transpose(1, 2),
        value.to(query.dtype).transpose(1, 2),
    )
    mixed: Tensor = functional.scaled_dot_product_attention(*heads_first)
    return mixed.transpose(1, 2)


def attend_frames(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """`attend` written out: a handful of positions fills no tile of an attention kernel."""
    heads_first = (part.float().transpose(1, 2) for part in (query, key, value))
    queries, keys, values = heads_first
    scores = (queries.unsqueeze(-2) * keys.unsqueeze(-3)).sum(dim=-1) * query.shape[-1] ** -0.5
    weights = scores.softmax(dim=-1).unsqueeze(-1)
    mixed: Tensor = (weights * values.unsqueeze(-3)).sum(dim=-2)
    return mixed.to(query.dtype).transpose(1, 2)


def _normed(hidden: Tensor) -> Tensor:
    return functional.layer_norm(hidden, hidden.shape[-1:])


def _unit32(values: Tensor) -> Tensor:
    values = values.float()
    return values * torch.rsqrt(values.square().mean(dim=-1, keepdim=True) + 1e-6)


def _unit(values: Tensor) -> Tensor:
    """So that random weights keep scores in range; a trained model has its own norm here."""
    return _unit32(values).to(values.dtype)


def _gated(hidden: Tensor, gate: Tensor, update: Tensor) -> Tensor:
    return hidden + gate * update
