"""Dedup: frames of one session replaced by the nearest of another one's, sent as a reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from bench.lossy.caches import cache_leaves
from bench.lossy.handle import Handle, Scene
from bench.lossy.nearest import nearest

#: What is sent instead of a frame: the name of another.
_REFERENCE_BYTES = 8
_PERCENTS = (10, 50, 100)


@dataclass(frozen=True)
class _Twinned:
    """A frame of one tensor, and the other session's that resembles it most."""

    piece: Tensor
    stand_in: Tensor
    distance: float

    @property
    def saved_bytes(self) -> int:
        return self.piece.numel() * self.piece.element_size() - _REFERENCE_BYTES


def handles() -> list[Handle]:
    """Frames of the same bits alone; and the nearest of those that differ."""
    return [
        Handle("dedup", "frames of the same bits", _deduplicated(0)),
        *(
            Handle("dedup", f"nearest {each} % of frames", _deduplicated(each))
            for each in _PERCENTS
        ),
    ]


def _deduplicated(percent: int) -> Callable[[Scene], int]:
    def apply(scene: Scene) -> int:
        pieces = list(_twinned(scene))
        same = [each for each in pieces if each.distance == 0.0]
        others = sorted(
            (each for each in pieces if each.distance > 0.0), key=lambda each: each.distance
        )
        chosen = same + others[: len(others) * percent // 100]
        for each in chosen:
            each.piece.copy_(each.stand_in)
        return sum(each.saved_bytes for each in chosen)

    return apply


def _twinned(scene: Scene) -> Iterator[_Twinned]:
    """Candidates are all frames of the same tensor in the other session."""
    ours, theirs = cache_leaves(scene.config, scene.state), cache_leaves(scene.config, scene.donor)
    for mine, other in zip(ours, theirs, strict=True):
        candidates = [other.frame(number) for number in range(other.frames)]
        for number in range(mine.frames):
            match = nearest(mine.frame(number), candidates)
            yield _Twinned(mine.frame(number), candidates[match.candidate], match.distance)
