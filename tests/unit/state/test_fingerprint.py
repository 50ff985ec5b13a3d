"""Fingerprint: reads this process as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from worldline.errors import InvalidInput
from worldline.state import fingerprint as read_here
from worldline.state.fingerprint import code_digest, cpu_fingerprint
from worldline.state.manifest import Fingerprint
from worldline.state.remedies import REMEDIES, mismatch, remedies


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


CUDA: Any = torch.backends.cuda
#: Each fact that a flag of torch decides: how it is set, and to what and back.
FLAGS: dict[str, tuple[Callable[[Any], object], object, object]] = {
    "attention": (CUDA.enable_flash_sdp, False, True),
    "attention_reduction": (CUDA.allow_fp16_bf16_reduction_math_sdp, True, False),
    "default_dtype": (torch.set_default_dtype, torch.float64, torch.float32),
    "deterministic": (torch.use_deterministic_algorithms, True, False),
    "matmul_precision": (torch.set_float32_matmul_precision, "high", "highest"),
}


@pytest.mark.parametrize("fact", FLAGS)
def test_flags_of_torch_are_facts(fact: str) -> None:
    set_flag, to, back = FLAGS[fact]
    first = here()
    set_flag(to)
    try:
        changed = changes(first, here())
    finally:
        set_flag(back)
    # The precision of products is oneDNN's too.
    assert changed - {"onednn_fp32"} == {fact}, changed
    assert first == here()


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        ({"enabled": False}, "onednn"),
        ({"deterministic": True}, "onednn_deterministic"),
    ],
)
def test_switches_of_onednn_are_facts(flags: dict[str, bool], fact: str) -> None:
    first = here()
    wanted = {"enabled": True, "deterministic": False, "allow_tf32": False} | flags
    with torch.backends.mkldnn.flags(**wanted):
        assert changes(first, here()) == {fact}
    assert first == here()


def test_rounding_of_onednn_is_a_fact() -> None:
    first, matmul = here(), torch.backends.mkldnn.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        assert "onednn_fp32" in changes(first, here())
    finally:
        matmul.fp32_precision = before
    assert first == here()


@pytest.mark.parametrize("name", read_here._NUMERICS_ENVIRONMENT)
def test_variables_that_choose_kernels_are_facts(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    first = here()
    monkeypatch.setenv(name, "another")
    assert changes(first, here()) == {"numerics_environment"}


def test_what_the_machine_is_is_a_fact(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nvendor_id\t: SomebodyElse\n")
    changed_by: list[tuple[Any, str, Any, set[str]]] = [
        (read_here.platform, "machine", lambda: "riscv64", {"architecture"}),
        (read_here.sys, "byteorder", "big", {"byte_order"}),
        (read_here, "_CPUINFO", cpuinfo, {"cpu_vendor"}),
        (read_here, "version", lambda package: "9.9", {"triton"}),
        (torch, "__version__", "1.0", {"torch"}),
        (torch.__config__, "show", lambda: "another build", {"torch_build"}),
        (torch.backends.cpu, "get_cpu_capability", lambda: "NO", {"instruction_set"}),
        (
            torch.cpu,
            "get_capabilities",
            lambda: {"avx9": True, "l1d_cache_size": 1},
            {"caches", "cpu_features"},
        ),
    ]
    first = here()
    for owner, name, value, facts in changed_by:
        with monkeypatch.context() as changing:
            changing.setattr(owner, name, value)
            assert changes(first, here()) == facts
    monkeypatch.setattr(read_here, "_CPUINFO", tmp_path / "absent")
    assert here().facts["cpu_vendor"] == "unknown"


def test_sessions_of_one_pass_are_a_fact() -> None:
    arguments = {"engine_code": "c0de", "weights_digest": "5eed"}
    batched = cpu_fingerprint(**arguments, sessions_per_pass=4)
    assert here().differences(batched) == ("sessions_per_pass: '1' here, '4' there",)
    with pytest.raises(InvalidInput) as caught:
        cpu_fingerprint(**arguments, sessions_per_pass=0)
    assert caught.value.field == "sessions_per_pass"


def test_every_fact_has_a_remedy() -> None:
    assert here().facts.keys() <= REMEDIES.keys()


def test_a_mismatch_says_which_facts_and_how_to_make_them_equal() -> None:
    one = Fingerprint.of({"threads": "1", "torch": "2", "unheard": "x"})
    other = Fingerprint.of({"threads": "2", "torch": "2", "triton": "3"})
    assert mismatch(one, other) == (
        "threads: '1' here, '2' there; triton: absent here, '3' there; unheard: 'x' here, "
        "absent there. To make them equal: start both engines with the same --threads; install "
        "the same triton on both; make unheard equal"
    )
    assert remedies(one, one) == ()
    # Two facts with one cause have one remedy.
    gpus = Fingerprint.of({"gpu": "a", "compute_capability": "9.0"})
    assert remedies(gpus, Fingerprint.of({})) == ("put both engines on GPUs of one kind",)


def changes(one: Fingerprint, other: Fingerprint) -> set[str]:
    return {line.partition(":")[0] for line in one.differences(other)}


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
