"""Parts: long work in parts, so that others get their quanta in between.

Work in parts is a generator, as a block is: it yields wherever something else may run, and returns
what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import pairwise
from typing import TypeVar

import torch

from worldline.state.digest import GRANULE_BYTES, Digester
from worldline.state.layout import Layout
from worldline.state.manifest import Digests

T = TypeVar("T")
Parts = Generator[None, None, T]

#: What a core writes or reads in some milliseconds, pages that nobody has touched before included.
HOST_PART_BYTES = 8 << 20
#: The same of a GPU, where a part costs a wait for the device besides.
DEVICE_PART_BYTES = 256 << 20


def most_bytes_of(device: torch.device) -> int:
    """How many bytes one part reads or writes there."""
    return HOST_PART_BYTES if device.type == "cpu" else DEVICE_PART_BYTES


def exhaust(parts: Parts[T]) -> T:
    """All of it at once, where nobody else is to run; what it returns."""
    while True:
        try:
            next(parts)
        except StopIteration as over:
            result: T = over.value
            return result


def at_once(work: Callable[[], T]) -> Parts[T]:
    """What cannot be cut: one part."""
    yield from ()
    return work()


def spans(extent_bytes: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """A number of bytes cut into runs of at most `most_bytes`: where each starts and stops."""
    yield from pairwise([*range(0, extent_bytes, most_bytes), extent_bytes])


def cuts(shape: tuple[int, ...], item_bytes: int, most_bytes: int) -> Iterator[tuple[slice, ...]]:
    """Indices that cut a tensor into parts of at most `most_bytes`, of one item at least.

    Every item is in exactly one part, and every part is a view.
    """
    if not shape:
        yield ()
        return
    first, rest = shape[0], shape[1:]
    row_bytes = item_bytes * torch.Size(rest).numel()
    if row_bytes <= most_bytes or first == 0:
        rows = max(1, most_bytes // max(1, row_bytes))
        for start in range(0, first, rows):
            yield (slice(start, min(start + rows, first)),)
        return
    for row in range(first):
        for below in cuts(rest, item_bytes, most_bytes):
            yield (slice(row, row + 1), *below)


def by_parts(
    tensors: Iterable[torch.Tensor], touch: Callable[[int, tuple[slice, ...]], None]
) -> Parts[None]:
    """Touch every part of these tensors, by the tensor's number and an index into it.

    One part of the work touches as many as come to `most_bytes_of`.
    """
    done_bytes = 0
    for number, tensor in enumerate(tensors):
        most_bytes = most_bytes_of(tensor.device)
        for index in cuts(tuple(tensor.shape), tensor.element_size(), most_bytes):
            part_bytes = tensor[index].numel() * tensor.element_size()
            if done_bytes and done_bytes + part_bytes > most_bytes:
                yield
                done_bytes = 0
            touch(number, index)
            done_bytes += part_bytes


def zeroed(tensors: Iterable[torch.Tensor]) -> Parts[None]:
    """Write zeros over these tensors."""
    known = tuple(tensors)

    def zero(number: int, index: tuple[slice, ...]) -> None:
        known[number][index].zero_()

    yield from by_parts(known, zero)


def digested(layout: Layout, slot: torch.Tensor) -> Parts[Digests]:
    """Digests of a state that rests in a slot, computed on the host wherever the slot is."""
    digester = Digester(layout)
    run_bytes = max(1, most_bytes_of(slot.device) // GRANULE_BYTES) * GRANULE_BYTES
    for start, stop in spans(layout.extent_bytes, run_bytes):
        granules = -(-(stop - start) // GRANULE_BYTES)
        digester.update(start // GRANULE_BYTES, granules, slot[start:stop].cpu().numpy().data)
        yield
    return digester.digests()
