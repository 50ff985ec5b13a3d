"""Stride: how a tensor's elements lie in memory, and how they lie when packed densely."""

from __future__ import annotations

from worldline.state.leaf import span_elements


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements, as torch gives a fresh tensor (empty dimensions count 1)."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def overlaps_itself(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether two indices may meet in one element, expanded dimensions (stride 0) aside.

    Answers True for a few exotic `as_strided` views that do not overlap; they are then kept as
    they are, which is exact too.
    """
    reach = 0
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size <= 1 or step == 0:
            continue
        if step <= reach:
            return True
        reach += (size - 1) * step
    return False


def is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether every element of the bounding span belongs to the tensor, each once."""
    if 0 in shape:
        return True
    distinct = 1
    for size, step in zip(shape, stride, strict=True):
        distinct *= size if step else 1
    return distinct == span_elements(shape, stride) and not overlaps_itself(shape, stride)


def compact_stride(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """Dense strides in the same order of dimensions; expanded dimensions stay expanded.

    What is dense already keeps its strides to the letter, and so does a view that overlaps itself
    (a sliding window): no dense strides express it.
    """
    if is_dense(shape, stride) or overlaps_itself(shape, stride):
        return stride
    moving = [dim for dim, step in enumerate(stride) if step]
    outer_first = sorted(moving, key=lambda dim: (-stride[dim], dim))
    compact = list(stride)
    step = 1
    for dim in reversed(outer_first):
        compact[dim] = step
        step *= shape[dim]
    return tuple(compact)
