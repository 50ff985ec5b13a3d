"""The conformance suite: holds right engines, and finds every fault of `wrong_engines`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from services.engine.check.case import Case, Wish
from services.engine.check.elsewhere import Elsewhere
from services.engine.check.finding import Finding, Outcome, listed
from services.engine.check.leaves import kinds
from services.engine.check.subject import load_subject
from services.engine.check.suite import CHECKS, findings
from services.engine.device import CPU_DEVICE
from worldline.cli import elapsed
from worldline.errors import DeadlineExceeded, InvalidInput, InvariantBroken, Unavailable

EXAMPLES = Path(__file__).parents[3] / "examples"
WRONG = "tests.unit.engine.wrong_engines"
WISH = Wish(blocks=2, leaves=12)
ANSWER_S = 240.0


@pytest.fixture(scope="module", autouse=True)
def _weights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where the examples are found, and the file of the engine that reads one."""
    path = tmp_path_factory.mktemp("weights") / "weights.bin"
    path.write_bytes(b"weights")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        patch.setenv("WRONG_ENGINES_WEIGHTS", str(path))
        yield


@pytest.fixture(scope="module")
def elsewhere(_weights: None) -> Iterator[Elsewhere]:
    """One process for all: no engine is checked twice in it."""
    with Elsewhere(CPU_DEVICE, 1, ANSWER_S) as other:
        yield other


def checked(name: str, elsewhere: Elsewhere) -> dict[str, Finding]:
    torch.set_num_threads(1)
    named = name if ":" in name or name == "tiny" else f"{WRONG}:{name}"
    case = Case(load_subject(named, 0, CPU_DEVICE), WISH, elsewhere)
    found = list(findings(case))
    assert torch.is_grad_enabled(), "a check leaves what a model changes"
    assert [one.check for one in found] == [check.name for check in CHECKS]
    return {one.check: one for one in found}


def named(found: dict[str, Finding], outcome: Outcome) -> set[str]:
    return {name for name, one in found.items() if one.outcome is outcome}


@pytest.mark.parametrize("name", ["my_world:MyWorld", "tiny", "Owning", "Repacking"])
def test_a_right_engine_holds(name: str, elsewhere: Elsewhere) -> None:
    found = checked(name, elsewhere)
    assert not named(found, Outcome.FAILED), found
    assert not named(found, Outcome.SKIPPED)
    assert all(one.evidence for one in found.values())
    assert named(found, Outcome.WARNED) <= ({"leaves"} if name == "tiny" else set())


def test_an_engine_of_its_own_tensors_is_checked_with_them(elsewhere: Elsewhere) -> None:
    found = checked("OwningForgetful", elsewhere)
    assert {"fresh-process", "unpacked"} <= named(found, Outcome.FAILED)
    one = checked("OwningOne", elsewhere)
    assert named(one, Outcome.WARNED) == {"interleaved"}
    assert not named(one, Outcome.FAILED)
    assert "tensors of its own" in one["unpacked"].evidence


@pytest.mark.parametrize(
    ("name", "failing", "said"),
    [
        ("ForgottenGenerator", {"fresh-process", "unpacked", "interleaved"}, "hidden"),
        ("HiddenCounter", {"fresh-process", "interleaved"}, "generated"),
        ("GlobalNoise", {"process-wide", "fresh-process", "two-processes"}, "global generator"),
        ("Clockwork", {"two-processes", "fresh-process"}, "frames"),
        ("Addressed", {"repeated", "unpacked"}, "frames"),
        ("SharedScratch", {"interleaved"}, "beside another session"),
        ("AnyBlock", {"block-index"}, "was taken"),
        ("FlatLadder", {"ladder"}, "quanta, not"),
        ("GradientsOff", {"process-wide"}, "gradient mode"),
    ],
)
def test_a_fault_is_found(name: str, failing: set[str], said: str, elsewhere: Elsewhere) -> None:
    found = checked(name, elsewhere)
    failed = named(found, Outcome.FAILED)
    assert failing <= failed, found
    assert any(said in found[check].evidence for check in failed)
    assert all(found[check].remedy for check in failed)
    assert not named(found, Outcome.SKIPPED)


@pytest.mark.parametrize(
    ("name", "check", "said"),
    [
        ("NoTree", "state-spec", "seen"),
        ("OtherTree", "state-spec", "another tree"),
        ("HalfWritten", "initialise", "window"),
        ("OwningHalfWritten", "initialise", "window"),
        ("Replacing", "in-place", "window"),
        ("BadFrames", "frames", "12288 bytes for frames of 15360"),
        ("NoFrames", "frames", "bytes"),
    ],
)
def test_after_a_fault_that_nothing_can_stand_on_nothing_is_asked(
    name: str, check: str, said: str, elsewhere: Elsewhere
) -> None:
    found = checked(name, elsewhere)
    assert named(found, Outcome.FAILED) == {check}
    assert said in found[check].evidence
    names = [one.name for one in CHECKS]
    assert named(found, Outcome.SKIPPED) == set(names[names.index(check) + 1 :])
    assert all(f"needs {check}" == found[one].evidence for one in named(found, Outcome.SKIPPED))


@pytest.mark.parametrize(
    ("name", "check", "said"),
    [
        ("SeedIgnored", "initialise", "another seed"),
        ("Unread", "leaves", "spare[0, 1]"),
        ("HollowStep", "ladder", "3 and 4 steps are the same"),
        ("ReadsWeights", "weights", "weights.bin"),
        ("HiddenCounter", "object", "generated"),
    ],
)
def test_what_is_worth_a_look_is_a_warning(
    name: str, check: str, said: str, elsewhere: Elsewhere
) -> None:
    found = checked(name, elsewhere)
    assert found[check].outcome is Outcome.WARNED, found
    assert said in found[check].evidence
    assert found[check].remedy


def test_a_state_that_nobody_reads_is_a_fault(elsewhere: Elsewhere) -> None:
    found = checked("Deaf", elsewhere)
    assert found["leaves"].outcome is Outcome.FAILED


# The other process.


def test_the_other_process_dies(elsewhere: Elsewhere) -> None:
    with (
        Elsewhere(CPU_DEVICE, 1, ANSWER_S) as other,
        pytest.raises(Unavailable, match="status -9") as died,
    ):
        other.replayed(f"{WRONG}:Dying", 0, 7, 1)
    assert died.value.reason == "CHECK_PROCESS_DIED"


def test_the_other_process_does_not_answer() -> None:
    with (
        Elsewhere(CPU_DEVICE, 1, answer_s=0.0) as other,
        pytest.raises(DeadlineExceeded, match="0 s"),
    ):
        other.replayed(f"{WRONG}:Right", 0, 7, 1)


def test_what_it_raises_there_is_said_here(elsewhere: Elsewhere) -> None:
    with pytest.raises(InvariantBroken, match=r"MODEL_IMPORT|no attribute Nobody"):
        elsewhere.replayed(f"{WRONG}:Nobody", 0, 7, 1)


def test_a_name_that_names_nothing() -> None:
    with pytest.raises(InvalidInput):
        load_subject("nix", 0, CPU_DEVICE)


# Words.


def test_lists_are_short() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed(list("abcdefgh")) == "a, b, c, d, e, f and 2 more"
    assert kinds(["x[2].k", "x[3].k", "y", "x[3].v"]) == ["x[2, 3].k", "y", "x[3].v"]


# As a command.


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "worldline.cli.main", "check-engine", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES)},
    )


def test_a_state_without_compute_is_checked_in_a_sample_and_says_so() -> None:
    done = run("mg2", "--blocks", "1", "--leaves", "2")
    assert done.returncode == 0, done.stderr
    last = " ".join(done.stdout.split()).partition("mg2: ")[2]
    assert last.startswith(f"{len(CHECKS)} held") or "warned" in last, done.stdout
    part, whole = re.findall(r"sample of ([0-9,]+) of its ([0-9,]+) bytes", last)[0]
    assert whole == "1,670,202,880"
    assert int(part.replace(",", "")) < 1_670_202_880 / 20


def test_each_finding_is_printed_once() -> None:
    done = run("my_world:MyWorld", "--blocks", "1", "--leaves", "2")
    assert done.returncode == 0, done.stderr
    said = (done.stdout + done.stderr).splitlines()
    for check in CHECKS:
        assert sum(line.split()[:2] == [check.name, "held"] for line in said) == 1, said
    assert not any("held" in line for line in done.stderr.splitlines())


def test_what_takes_longer_than_a_second_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, printed = [100.0], list[str]()
    monkeypatch.setattr(elapsed.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(elapsed.err_console, "print", lambda text, **_: printed.append(text))
    shown = elapsed.Elapsed("loading it")
    for passed_s in (0.9, 0.2, 3.0, 7.5):
        now[0] += passed_s
        shown.tick()
    assert printed == ["loading it ... 1 s", "loading it ... 12 s"]
    shown.begin("3 checks done; leaves")
    now[0] += 0.5
    shown.detail("1 of 9 leaves")
    now[0] += 1.0
    shown.detail("4 of 9 leaves")
    assert printed[2:] == ["3 checks done; leaves ... 4 of 9 leaves, 2 s"]


def test_the_command_sums_up_in_one_document() -> None:
    done = run("my_world:MyWorld", "--blocks", "1", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["preset"], report["device"]) == ("my-world", "cpu")
    assert [one["check"] for one in report["findings"]] == [check.name for check in CHECKS]
    assert {one["outcome"] for one in report["findings"]} == {"held"}


def test_the_command_fails_where_the_model_takes_its_process_along() -> None:
    done = run(f"{WRONG}:Dying")
    assert done.returncode == 1, done.stderr
    assert "state-spec failed" in " ".join(done.stdout.split())
    assert "status -9" in done.stdout


def test_the_command_says_what_cannot_be_loaded() -> None:
    done = run("my_world:Theirs")
    assert (done.returncode, done.stdout) == (2, "")
    assert "MODEL_ATTRIBUTE_MISSING" in done.stderr
    assert "MyWorld" in done.stderr


def test_one_that_is_told_to_end_leaves_no_file(tmp_path: Path) -> None:
    """It is told so while the other process begins, with the files that were written for it."""
    command = [sys.executable, "-m", "services.engine.check", "tiny", "--blocks", "2"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as checking:
        assert checking.stdout is not None
        assert any('"begin": "fresh-process"' in line for line in checking.stdout)
        deadline_s = time.monotonic() + 60.0
        while not list(tmp_path.glob("worldline-check-*")):
            assert time.monotonic() < deadline_s, "nothing was written"
        checking.terminate()
        assert checking.wait(60) == 128 + signal.SIGTERM
    assert not list(tmp_path.glob("worldline-check-*"))


def test_the_page_has_every_check() -> None:
    page = (EXAMPLES.parent / "docs" / "engines.md").read_text()
    table = page[page.index("| check |") :]
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| `")]
    assert rows[: len(CHECKS)] == [f"`{check.name}`" for check in CHECKS]
