"""Row: one handle over all seeds. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.lossy.run import Outcome


@dataclass(frozen=True)
class Row:
    """Means over seeds, but for what one seed suffices to say."""

    family: str
    name: str
    saved_share: float
    differing_bytes_max: int
    #: The earliest of any seed; None: no block of any seed shows anything.
    visible_at: int | None
    #: A mean over seeds for every block.
    divergence_db: tuple[float, ...]
    worst_db: float
    #: Seeds whose last block shows the twin's frames, and whose state is the twin's.
    frames_recovered: int
    state_recovered: int
    seeds: int

    @property
    def is_exact(self) -> bool:
        """Whether no viewer of any seed saw another frame, and every state ends as the twin's."""
        return self.visible_at is None and self.state_recovered == self.seeds

    def to_json(self) -> dict[str, Any]:
        """For the document."""
        return {**vars(self), "is_exact": self.is_exact}


def rows(outcomes: Sequence[Outcome]) -> list[Row]:
    """In the order in which handles first appear."""
    names = dict.fromkeys((one.family, one.name) for one in outcomes)
    return [
        _row([one for one in outcomes if (one.family, one.name) == (family, name)])
        for family, name in names
    ]


def _row(same: Sequence[Outcome]) -> Row:
    blocks = zip(*(one.divergence_db for one in same), strict=True)
    return Row(
        family=same[0].family,
        name=same[0].name,
        saved_share=statistics.fmean(one.saved_bytes / one.state_bytes for one in same),
        differing_bytes_max=max(one.differing_bytes for one in same),
        visible_at=min((one.visible_at for one in same if one.visible_at), default=None),
        divergence_db=tuple(statistics.fmean(block) for block in blocks),
        worst_db=max(max(one.divergence_db) for one in same),
        frames_recovered=sum(one.frames_recovered for one in same),
        state_recovered=sum(one.state_recovered for one in same),
        seeds=len(same),
    )
