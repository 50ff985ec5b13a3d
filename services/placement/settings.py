"""Settings of placement: environment `WORLDLINE_PLACEMENT_*`, and the same as flags."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from worldline.rpc.host import ServiceSettings


class PlacementSettings(ServiceSettings):
    """One placement process; it is the directory's only writer."""

    model_config = SettingsConfigDict(
        env_prefix="WORLDLINE_PLACEMENT_",
        extra="forbid",
        frozen=True,
        cli_kebab_case=True,
        cli_prog_name="worldline-placement",
    )

    admission_address: str = Field(description="host:port of admission")
    directory_path: str = Field("worldline.db", description="SQLite file of the directory")
    traces_path: str = Field(
        "", description="SQLite file of recent traces; empty: beside the directory"
    )
    engine_lease_ms: int = Field(
        3_000, ge=100, le=600_000, description="an engine silent for longer stops generating"
    )
    node_lease_ms: int = Field(
        3_000, ge=100, le=600_000, description="a mover silent for longer is taken for gone"
    )
    orphan_grace_ms: int = Field(
        10_000, ge=0, le=600_000, description="a LIVE slot that is nobody's for longer is released"
    )
    rest_s: float = Field(
        30.0, gt=0, le=3_600, description="a move that waits longer for a verb is rolled back"
    )
    drain_deadline_s: float = Field(
        600.0, gt=0, le=86_400, description="a drain that nobody gave a deadline ends after so long"
    )

    def traces_file(self) -> str:
        """Where the trace store lives."""
        return self.traces_path or f"{self.directory_path}.traces"
