"""Mover settings: arguments, environment `WORLDLINE_MOVER_*`, defaults, in that order."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from services.mover.chunking import CHUNK_BYTES_MAX, WINDOW_CHUNKS_MAX
from worldline.rpc.host import ServiceSettings
from worldline.state.digest import GRANULE_BYTES


class MoverSettings(ServiceSettings):
    """One mover: the node's slots and the wire between nodes."""

    model_config = SettingsConfigDict(
        env_prefix="WORLDLINE_MOVER_", cli_prog_name="worldline-mover", cli_kebab_case=True
    )

    node_id: str = Field("node-0", min_length=1, max_length=128, description="this node's name")
    placement_address: str = Field("", description="placement's host:port; empty: unregistered")
    admission_address: str = Field("", description="admission's host:port, for its ticket key")
    slot_count: int = Field(2, ge=1, le=1024, description="slots on this node")
    slot_bytes: int = Field(
        64 << 20, ge=1, le=1 << 44, description="size of each slot; pages are taken when used"
    )
    runtime_dir: Path = Field(
        Path(tempfile.gettempdir()), description="directory for the slot server's socket"
    )
    chunk_bytes: int = Field(
        8 << 20, ge=GRANULE_BYTES, le=CHUNK_BYTES_MAX, description="bytes on the wire at once"
    )
    window_chunks: int = Field(
        8, ge=1, le=WINDOW_CHUNKS_MAX, description="chunks in flight at most"
    )
    staged_hold_s: float = Field(
        120.0, gt=0, le=86_400, description="how long a landed state waits to be promoted"
    )
    digest_threads: int = Field(2, ge=1, le=64, description="threads that digest")
    register_within_s: float = Field(
        30.0, gt=0, le=600, description="how long to try to reach placement at start"
    )

    @model_validator(mode="after")
    def _whole_granules(self) -> MoverSettings:
        if self.chunk_bytes % GRANULE_BYTES:
            raise ValueError(f"chunk_bytes must be a multiple of {GRANULE_BYTES}")
        return self

    @property
    def socket_path(self) -> Path:
        """The slot server's socket: named after the node, which one mover serves."""
        return self.runtime_dir / f"mover-{self.node_id}.sock"
