"""Run: every handle on a copy of one warm session, played beside the exact twin."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.lossy import compress, dedup, evict, exact
from bench.lossy.fidelity import divergence_db, psnr_db
from bench.lossy.handle import Handle, Scene
from bench.private import Picture, PrivateSession, warm_session
from services.engine.model.causal import CausalWorld
from services.engine.model.config import WorldConfig
from services.engine.model.window import kept

#: The donor of seed n is the session of seed n + this.
_DONOR_SEED = 1_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one handle on one seed. Blocks count from it: the next is the first."""

    seed: int
    family: str
    name: str
    saved_bytes: int
    state_bytes: int
    #: Bytes of the state that differ from the exact one, before the next block.
    differing_bytes: int
    #: Of each block's frames, against the exact twin's; infinite where they are the same bits.
    psnr_db: tuple[float, ...]
    #: Whether the whole state is the twin's after the last block.
    state_recovered: bool

    @property
    def visible_at(self) -> int | None:
        """The first block whose frames are not the twin's bit for bit, from 1."""
        seen = (n for n, psnr in enumerate(self.psnr_db, 1) if not math.isinf(psnr))
        return next(seen, None)

    @property
    def divergence_db(self) -> tuple[float, ...]:
        """Of each block, see `fidelity`."""
        return tuple(divergence_db(psnr) for psnr in self.psnr_db)

    @property
    def frames_recovered(self) -> bool:
        """Whether the last block's frames are the twin's, bit for bit."""
        return math.isinf(self.psnr_db[-1])

    def to_json(self) -> dict[str, Any]:
        """For the document; a PSNR of identical frames is null, for JSON knows no infinity."""
        return asdict(self) | {
            "psnr_db": [None if math.isinf(psnr) else psnr for psnr in self.psnr_db],
            "visible_at": self.visible_at,
        }


def all_handles(config: WorldConfig) -> list[Handle]:
    """The exact ones and the lossy family."""
    window = config.window_frames
    return [
        *exact.handles(),
        *evict.handles(window, kept(window, window, config.frames_per_block).start),
        *compress.handles(),
        *dedup.handles(),
    ]


def run(
    world: CausalWorld,
    seed: int,
    warm_blocks: int,
    blocks: int,
    say: Callable[[str], None] = lambda text: None,
) -> list[Outcome]:
    """All handles on the session of `seed` after `warm_blocks`, each played for `blocks` more."""
    session = warm_session(world, seed, warm_blocks)
    donor = warm_session(world, seed + _DONOR_SEED, warm_blocks)
    twin = session.copy()
    expected = [twin.play() for _ in range(blocks)]
    digest = twin.digest()
    outcomes = []
    for handle in all_handles(world.config):
        outcomes.append(_outcome(handle, seed, session, donor, expected, digest))
        say(f"seed {seed}, {handle}")
    return outcomes


def _outcome(
    handle: Handle,
    seed: int,
    session: PrivateSession,
    donor: PrivateSession,
    expected: Sequence[Picture],
    digest: int,
) -> Outcome:
    changed = session.copy()
    saved = handle.apply(Scene(session.world.config, changed.tree, donor.tree))
    differing = int((changed.buffer != session.buffer).sum())
    shown = tuple(psnr_db(changed.play(), picture) for picture in expected)
    return Outcome(
        seed=seed,
        family=handle.family,
        name=handle.name,
        saved_bytes=saved,
        state_bytes=session.layout.extent_bytes,
        differing_bytes=differing,
        psnr_db=shown,
        state_recovered=changed.digest() == digest,
    )
