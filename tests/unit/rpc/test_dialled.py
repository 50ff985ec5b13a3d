"""Addresses of peers that nobody can have are refused before anybody waits for them."""

from __future__ import annotations

import pytest

from worldline.errors import InvalidInput
from worldline.rpc.dialled import check_dialled


@pytest.mark.parametrize(
    "text",
    ["nonsense", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", "http://x:1", ":7400", "a b:1"],
)
def test_an_address_that_nobody_can_have(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_dialled(mover_address="", placement_address=text)
    assert caught.value.field == "placement_address"
    assert text in caught.value.message


def test_what_can_be_dialled_and_what_is_not_set() -> None:
    check_dialled(
        a="node-1.example:7400", b="[::1]:7400", c="unix:/run/x.sock", d="dns:///x:1", e=""
    )
