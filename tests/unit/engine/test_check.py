"""The conformance suite: holds right engines, and finds every fault of `wrong_engines`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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


def test_the_command_streams_and_sums_up() -> None:
    done = run("my_world:MyWorld", "--blocks", "1", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["preset"], report["device"]) == ("my-world", "cpu")
    assert [one["check"] for one in report["findings"]] == [check.name for check in CHECKS]
    assert {one["outcome"] for one in report["findings"]} == {"held"}
    assert all(f"{one['outcome']:8}{one['check']}" in done.stderr for one in report["findings"])


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


def test_the_page_has_every_check() -> None:
    page = (EXAMPLES.parent / "docs" / "engines.md").read_text()
    table = page[page.index("| check |") :]
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| `")]
    assert rows[: len(CHECKS)] == [f"`{check.name}`" for check in CHECKS]
