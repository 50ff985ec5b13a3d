"""Settings of the engine service, from the environment (WORLDLINE_ENGINE_*) or the command line."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from services.engine.binding import BindMode
from services.engine.pluginname import plugin_names
from worldline.devicename import device_name
from worldline.errors import InvalidInput
from worldline.numa import NUMA_NODE_MAX, parse_cpu_list
from worldline.rpc.host import ServiceSettings


class EngineSettings(ServiceSettings):
    """One engine process: one device, its sessions, its schedule."""

    model_config = SettingsConfigDict(
        env_prefix="WORLDLINE_ENGINE_", cli_prog_name="worldline-engine", cli_kebab_case=True
    )

    engine_id: str = Field("engine-0", description="this engine's name in the directory")
    node_id: str = Field("node-0", description="the node whose mover owns this engine's slots")
    device: str = Field("cpu", description="device that generates: cpu, cuda or cuda:N")
    threads: int = Field(1, ge=1, le=1024, description="threads of one quantum; part of T0")
    bind: BindMode = Field(
        BindMode.AUTO,
        description="auto: run on `cores`, without them on the device's NUMA node; off: anywhere",
    )
    cores: Annotated[frozenset[int], NoDecode] = Field(
        frozenset(), description="CPUs of this engine alone, as 0-3,8; empty: none of its own"
    )
    numa_node: int | None = Field(
        None, ge=0, le=NUMA_NODE_MAX, description="NUMA node to run on in place of the device's own"
    )
    degrade_for_bulk: bool = Field(
        False,
        description="while bulk waits, worlds whose contract has a quality floor go down to it",
    )
    placement_address: str = Field(..., description="host:port of placement")
    mover_address: str = Field(..., description="host:port of this node's mover")
    models: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="models of other packages, served beside the built-in presets: "
        "module:attribute, separated by commas; part of T0",
    )
    weights_seed: int = Field(0, ge=0, lt=1 << 63, description="seed of the model's weights")
    register_timeout_s: float = Field(
        30.0, gt=0, le=600, description="how long to wait for placement at start"
    )
    call_timeout_s: float = Field(
        10.0, gt=0, le=600, description="deadline of one call to a mover or placement"
    )

    @field_validator("models", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        try:
            return plugin_names(value) if isinstance(value, str) else value
        except InvalidInput as error:
            raise ValueError(error.message) from error

    @field_validator("cores", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return parse_cpu_list(value) if isinstance(value, str) else value

    @field_validator("device")
    @classmethod
    def _named(cls, value: str) -> str:
        try:
            return device_name(value, "device")
        except InvalidInput as error:
            raise ValueError(error.message) from error
