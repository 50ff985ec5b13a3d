"""Fingerprint: reads this process as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from worldline.errors import InvalidInput
from worldline.state.fingerprint import code_digest, cpu_fingerprint
from worldline.state.manifest import Fingerprint


def here() -> Fingerprint:
    return cpu_fingerprint(engine_code="c0de", weights_digest="5eed")


def test_the_same_process_has_the_same_fingerprint() -> None:
    assert here() == here()
    facts = here().facts
    assert facts["torch"] == torch.__version__
    assert facts["instruction_set"] == torch.backends.cpu.get_cpu_capability()
    assert facts["threads"] == str(torch.get_num_threads())


@pytest.mark.parametrize("argument", ["engine_code", "weights_digest"])
def test_code_and_weights_are_facts(argument: str) -> None:
    arguments = {"engine_code": "c0de", "weights_digest": "5eed"}
    other = cpu_fingerprint(**{**arguments, argument: "other"})
    assert len(here().differences(other)) == 1
    with pytest.raises(InvalidInput) as caught:
        cpu_fingerprint(**{**arguments, argument: ""})
    assert caught.value.field == argument


def test_threads_are_those_that_torch_uses() -> None:
    before = torch.get_num_threads()
    first = here()
    try:
        torch.set_num_threads(before + 1)
        assert first.differences(here()) == (f"threads: '{before}' here, '{before + 1}' there",)
        with pytest.raises(InvalidInput) as caught:
            cpu_fingerprint(engine_code="c", weights_digest="w", threads=before)
        assert caught.value.field == "threads"
    finally:
        torch.set_num_threads(before)
    assert cpu_fingerprint(engine_code="c0de", weights_digest="5eed", threads=before) == first


def test_numerics_flags_are_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    first = here()
    torch.use_deterministic_algorithms(True)
    try:
        assert first.differences(here()) == ("deterministic: 'False' here, 'True' there",)
    finally:
        torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("high")
    try:
        assert first.differences(here()) == ("matmul_precision: 'highest' here, 'high' there",)
    finally:
        torch.set_float32_matmul_precision("highest")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert len(first.differences(here())) == 1
    monkeypatch.undo()
    assert first == here()


def test_flushed_denormals_are_a_fact() -> None:
    first = here()
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush denormals")
    try:
        assert first.differences(here()) == ("flush_denormal: 'False' here, 'True' there",)
    finally:
        torch.set_flush_denormal(False)


def test_code_digest_is_of_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c.py").write_text("y = 2\n")
    first = code_digest(tmp_path)
    (tmp_path / "notes.txt").write_text("not code")
    assert code_digest(tmp_path) == first
    (tmp_path / "b" / "c.py").rename(tmp_path / "b" / "d.py")
    renamed = code_digest(tmp_path)
    (tmp_path / "b" / "d.py").write_text("y = 3\n")
    assert len({first, renamed, code_digest(tmp_path)}) == 3
    with pytest.raises(InvalidInput):
        code_digest(tmp_path / "nothing")
