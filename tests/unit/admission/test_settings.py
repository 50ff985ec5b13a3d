"""Settings, keys and policy: what an operator gets wrong is named at start."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from pydantic import ValidationError

from services.admission.keys import load_signer
from services.admission.policy import Policy
from services.admission.settings import AdmissionSettings
from worldline.errors import InvalidInput


def test_defaults_are_the_policys() -> None:
    assert AdmissionSettings().policy() == Policy()


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDLINE_ADMISSION_FAN_IN_MAX", "3")
    monkeypatch.setenv("WORLDLINE_ADMISSION_GUARD_BAND", "0.2")
    policy = AdmissionSettings().policy()
    assert (policy.fan_in_max, policy.guard_band) == (3, 0.2)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("fan_in_max", 0),
        ("guard_band", 1.0),
        ("guard_band", math.nan),
        ("lease_factor", math.nan),
        ("path_age_max_ms", math.inf),
        ("row_age_max_ms", 0.0),
        ("client_rate_per_s", 0),
    ],
)
def test_a_bad_setting_is_named(name: str, bad: float) -> None:
    with pytest.raises(ValidationError, match=name):
        AdmissionSettings(**{name: bad})


def test_bounds_that_contradict_each_other_are_named() -> None:
    with pytest.raises(InvalidInput) as caught:
        AdmissionSettings(lease_min_ms=10, lease_max_ms=9).policy()
    assert caught.value.field == "lease_max_ms"


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("holds_max", 0),
        ("valid_for_ms", 0),
        ("lease_factor", 0.5),
        ("guard_band", -0.1),
        ("row_age_max_ms", 0.0),
    ],
)
def test_a_bad_limit_is_named(name: str, bad: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        dataclasses.replace(Policy(), **{name: bad})
    assert caught.value.field == name


def test_a_key_file_gives_the_same_key_at_every_start(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_bytes(bytes(range(32)))
    key_file.chmod(0o600)
    assert load_signer(key_file).key_id == load_signer(key_file).key_id
    assert load_signer(None).key_id != load_signer(None).key_id


@pytest.mark.parametrize("content", [b"", bytes(31), bytes(33), b"x" * 10_000])
def test_a_key_file_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    key_file = tmp_path / "key"
    key_file.write_bytes(content)
    with pytest.raises(InvalidInput, match=str(key_file)) as caught:
        load_signer(key_file)
    assert caught.value.field == "key_file"


def test_a_key_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="No such file") as caught:
        load_signer(tmp_path / "absent")
    assert caught.value.field == "key_file"
