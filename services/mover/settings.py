"""Mover settings: arguments, environment `WORLDLINE_MOVER_*`, defaults, in that order."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from services.mover.chunking import CHUNK_BYTES_MAX, WINDOW_CHUNKS_MAX
from services.mover.memory.pages import HugePages
from services.mover.offer import Shape
from services.mover.transfer import Verification
from services.mover.transport.lanes import Lane
from worldline.devicename import CPU, device_name
from worldline.errors import InvalidInput
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
    devices: Annotated[tuple[str, ...], NoDecode] = Field(
        ("cpu",),
        min_length=1,
        description="where the slots are, separated by commas: cpu, cuda:0, ...; the first is "
        "that of whoever names none",
    )
    slot_count: int = Field(2, ge=1, le=1024, description="slots on each device")
    slot_bytes: int = Field(64 << 20, ge=1, le=1 << 44, description="size of each slot")
    huge_pages: HugePages = Field(
        HugePages.AUTO,
        description="2 MiB pages for slots in host memory: where there are some (auto), never, or "
        "the mover does not start without (require)",
    )
    prefault: bool = Field(
        True,
        description="take the memory of all slots at start; otherwise a slot's pages are taken "
        "when it is first used, a second or so a gigabyte",
    )
    lane: Lane = Field(
        Lane.AUTO,
        description="how bytes travel between movers of one host: read in place (auto), or by UCX "
        "over posix, cma or tcp; UCX_* variables win",
    )
    runtime_dir: Path = Field(
        Path(tempfile.gettempdir()), description="directory for the slot server's socket"
    )
    verification: Literal["auto", "pipelined", "sequential", "tail"] = Field(
        "auto",
        description="where digests are computed, unless a push says otherwise; auto: the fastest",
    )
    chunk_bytes: int = Field(
        32 << 20,
        ge=GRANULE_BYTES,
        le=CHUNK_BYTES_MAX,
        description="bytes of a chunk at most; 8 MiB are the most in place and over CMA",
    )
    window_chunks: int = Field(
        16, ge=1, le=WINDOW_CHUNKS_MAX, description="chunks in flight at most"
    )
    device_chunk_bytes: int = Field(
        128 << 20,
        ge=GRANULE_BYTES,
        le=CHUNK_BYTES_MAX,
        description="bytes on the wire at once, from a device",
    )
    device_window_chunks: int = Field(
        8, ge=1, le=WINDOW_CHUNKS_MAX, description="chunks in flight at most, from a device"
    )
    staging_rings: int = Field(
        2,
        ge=1,
        le=64,
        description="transfers each way that may go through pinned memory at once, where lanes "
        "do not carry device memory; 32 MiB each",
    )
    staged_hold_s: float = Field(
        120.0, gt=0, le=86_400, description="how long a landed state waits to be promoted"
    )
    probe_gives_way_within_s: float = Field(
        3.0,
        gt=0,
        le=60,
        description="how long whoever needs the slot of a probe waits for it: until no request of "
        "that probe is left",
    )
    wires_into_max: int = Field(
        1,
        ge=1,
        le=64,
        description="moves that may come in at once; together they are slower than in turn",
    )
    wires_out_of_max: int = Field(1, ge=1, le=64, description="moves that may leave at once")
    digest_threads: int = Field(2, ge=1, le=64, description="threads that digest")
    park_bytes_max: int = Field(
        0, ge=0, le=1 << 46, description="most memory for parked states; 0: as much as the slots"
    )
    park_ready_count: int = Field(
        0, ge=0, le=64, description="buffers of a slot's size made ready at start for parked states"
    )
    park_dir: Path | None = Field(None, description="directory for states parked in files")
    park_dir_bytes_max: int = Field(
        1 << 38, ge=0, le=1 << 50, description="most bytes of states parked in files"
    )
    park_threads: int = Field(
        default_factory=lambda: _park_threads(os.cpu_count() or 1),
        ge=1,
        le=64,
        description="threads that copy and digest a state that is parked or comes back; half the "
        "cores, 16 at most, unless set",
    )
    register_within_s: float = Field(
        30.0, gt=0, le=600, description="how long to try to reach placement at start"
    )

    @field_validator("devices", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return value.split(",") if isinstance(value, str) else value

    @field_validator("devices")
    @classmethod
    def _named(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            names = tuple(device_name(text.strip(), "devices") for text in value)
        except InvalidInput as error:
            raise ValueError(error.message) from error
        if len(set(names)) < len(names):
            raise ValueError("a device is named twice")
        return names

    @model_validator(mode="after")
    def _whole_granules(self) -> MoverSettings:
        for name in ("chunk_bytes", "device_chunk_bytes"):
            if getattr(self, name) % GRANULE_BYTES:
                raise ValueError(f"{name} must be a multiple of {GRANULE_BYTES}")
        return self

    def shape_of(self, device: str) -> Shape:
        """How an extent in memory of this device travels, unless its push says otherwise.

        A GPU digests its last chunk in a tenth of a millisecond, less than small chunks cost it; a
        processor does not (docs/measurements).
        """
        host = device == CPU
        fastest = Verification.TAIL if host else Verification.PIPELINED
        return Shape(
            fastest if self.verification == "auto" else Verification[self.verification.upper()],
            self.chunk_bytes if host else self.device_chunk_bytes,
            self.window_chunks if host else self.device_window_chunks,
        )

    @property
    def park_limit_bytes(self) -> int:
        """Most memory for parked states."""
        return self.park_bytes_max or len(self.devices) * self.slot_count * self.slot_bytes

    @property
    def socket_path(self) -> Path:
        """The slot server's socket: named after the node, which one mover serves."""
        return self.runtime_dir / f"mover-{self.node_id}.sock"


def _park_threads(cpu_count: int) -> int:
    """Half the cores: sixteen digest faster than a GPU's bus copies."""
    return min(16, max(cpu_count // 2, min(2, cpu_count)))
