"""Names of devices."""

from __future__ import annotations

import pytest

from worldline.devicename import cuda_index, device_name
from worldline.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "name", "index"),
    [
        ("cpu", "cpu", None),
        ("cuda", "cuda:0", 0),
        ("cuda:0", "cuda:0", 0),
        ("cuda:12", "cuda:12", 12),
    ],
)
def test_a_name_in_full(text: str, name: str, index: int | None) -> None:
    assert device_name(text, "device") == name
    assert cuda_index(name) == index


@pytest.mark.parametrize(
    "text",
    ["", "gpu", "CPU", "cuda:", "cuda:-1", "cuda:01", "cuda:1x", "cuda:1\n", "cpu:0", "cuda:1000"],
)
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        device_name(text, "devices")
    assert caught.value.field == "devices"
