"""Settings of admission: environment variables `WORLDLINE_ADMISSION_*` and the command line."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.admission.policy import Policy
from worldline.rpc.host import ServiceSettings
from worldline.ticket import DURATION_MS_MAX

_DEFAULT = Policy()


class AdmissionSettings(ServiceSettings):
    """Everything an operator may set; the limits' meaning is in `services.admission.policy`."""

    model_config = SettingsConfigDict(
        env_prefix="WORLDLINE_ADMISSION_",
        cli_prog_name="worldline-admission",
        cli_kebab_case=True,
    )

    fan_in_max: int = Field(
        _DEFAULT.fan_in_max, ge=1, description="moves in flight into one receiver"
    )
    fan_out_max: int = Field(
        _DEFAULT.fan_out_max, ge=1, description="moves in flight out of one sender"
    )
    queue_max: int = Field(
        _DEFAULT.queue_max, ge=1, description="moves planned into one receiver, waiting or not"
    )
    hysteresis: float = Field(
        _DEFAULT.hysteresis,
        ge=0,
        le=1,
        description="part of a move's cost by which it must save more than it costs",
    )
    holds_max: int = Field(_DEFAULT.holds_max, ge=1, description="moves in flight in all")
    client_holds_max: int = Field(
        _DEFAULT.client_holds_max, ge=1, description="moves in flight of one client"
    )
    paths_max: int = Field(_DEFAULT.paths_max, ge=1, description="measured paths remembered")
    path_age_max_ms: float = Field(
        _DEFAULT.path_age_max_ms,
        gt=0,
        allow_inf_nan=False,
        description="a path measured longer ago is measured again before it is believed",
    )
    valid_for_ms: int = Field(
        _DEFAULT.valid_for_ms,
        ge=1,
        le=DURATION_MS_MAX,
        description="a ticket's time from issue until both ends ask for the wire",
    )
    lease_factor: float = Field(
        _DEFAULT.lease_factor,
        ge=1,
        allow_inf_nan=False,
        description="the wire is leased for this many times the predicted transfer",
    )
    lease_min_ms: int = Field(
        _DEFAULT.lease_min_ms, ge=1, le=DURATION_MS_MAX, description="shortest lease of a wire"
    )
    lease_max_ms: int = Field(
        _DEFAULT.lease_max_ms, ge=1, le=DURATION_MS_MAX, description="longest lease of a wire"
    )
    guard_band: float = Field(
        _DEFAULT.guard_band, ge=0, le=0.9, description="part of every period left free on a device"
    )
    row_age_max_ms: float = Field(
        _DEFAULT.row_age_max_ms,
        gt=0,
        allow_inf_nan=False,
        description="what a quantum takes is measured again where nothing confirmed it for so long",
    )
    client_rate_per_s: int = Field(200, ge=1, description="requests per second and client")
    client_wait_max_s: float = Field(
        1.0, ge=0, le=60, description="longest wait of a request that is above the rate"
    )
    client_waiters_max: int = Field(64, ge=1, description="requests of one client that may wait")
    clients_max: int = Field(
        _DEFAULT.clients_max, ge=1, description="clients remembered for pacing, turns and patience"
    )
    patience_max_ms: int = Field(
        _DEFAULT.patience_max_ms,
        ge=1,
        le=DURATION_MS_MAX,
        description="longest that a client which comes back early is told to stay away",
    )
    relearn: bool = Field(
        True,
        description="grant nothing after a start before placement has told what is under way; "
        "off only where no move can be",
    )
    key_file: Path | None = Field(
        None, description="32 raw bytes of the ticket key; without it one is made at every start"
    )

    def policy(self) -> Policy:
        """The limits that decisions go by.

        Raises:
            InvalidInput: two limits contradict each other.
        """
        return Policy(
            fan_in_max=self.fan_in_max,
            fan_out_max=self.fan_out_max,
            queue_max=self.queue_max,
            hysteresis=self.hysteresis,
            clients_max=self.clients_max,
            patience_max_ms=self.patience_max_ms,
            holds_max=self.holds_max,
            client_holds_max=self.client_holds_max,
            paths_max=self.paths_max,
            path_age_max_ms=self.path_age_max_ms,
            valid_for_ms=self.valid_for_ms,
            lease_factor=self.lease_factor,
            lease_min_ms=self.lease_min_ms,
            lease_max_ms=self.lease_max_ms,
            guard_band=self.guard_band,
            row_age_max_ms=self.row_age_max_ms,
        )
