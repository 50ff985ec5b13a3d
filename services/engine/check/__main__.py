"""Entry point of a check: `python -m services.engine.check my_pkg:MyEngine`.

Writes a JSON object a line as it goes: `begin` before a check, `progress` in a long one, its
finding after it, and at the end `done`. `worldline check-engine` runs this and shows it to people.
Exit status 0: every check held or warned; 1: one failed; 2: the model cannot be loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from dataclasses import asdict
from typing import Any

from services.engine.check.blame import blamed
from services.engine.check.finding import Outcome
from worldline.errors import WorldlineError
from worldline.rpc.host import die_with_parent


def main() -> int:
    """Check the model that the command line names."""
    wish = _parser().parse_args()
    die_with_parent()
    # So that what was begun is cleaned up behind: the other process, and its directory.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a model prints is no finding

    def say(**said: Any) -> None:
        answers.write(json.dumps(said) + "\n")
        answers.flush()

    try:
        return _checked(wish, say)
    except WorldlineError as error:
        say(error=error.message, reason=error.reason, field=error.field)
        return 2
    except Exception as error:
        say(error=blamed(error), reason="MODEL_BUILD_FAILED", field="models")
        return 2


def _checked(wish: argparse.Namespace, say: Any) -> int:
    import torch

    from services.engine.check.case import Case, Wish
    from services.engine.check.elsewhere import Elsewhere
    from services.engine.check.subject import load_subject
    from services.engine.check.suite import findings
    from services.engine.device import describe_device, fix_numerics

    torch.set_num_threads(wish.threads)
    device = describe_device(wish.device)
    fix_numerics(device)
    device.enter()
    subject = load_subject(wish.name, wish.weights_seed, device)
    preset = str(subject.model.preset)
    say(model=wish.name, preset=preset, device=device.name, sample=subject.sample)
    how = Wish(wish.blocks, wish.seed, wish.weights_seed, wish.leaves)
    outcomes = []
    with Elsewhere(device, wish.threads, wish.answer_s) as elsewhere:
        case = Case(subject, how, elsewhere, lambda text: say(progress=text))
        for finding in findings(case, lambda name: say(begin=name)):
            outcomes.append(finding.outcome)
            say(**asdict(finding))
    say(done={outcome.value: outcomes.count(outcome) for outcome in Outcome})
    return 1 if Outcome.FAILED in outcomes else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="services.engine.check", description=__doc__)
    parser.add_argument("name", help="module:attribute, or a built-in preset")
    parser.add_argument("--blocks", type=int, default=3, help="before the capture, and after it")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:N")
    parser.add_argument("--threads", type=int, default=1, help="compute threads")
    parser.add_argument("--seed", type=int, default=7, help="of the session")
    parser.add_argument("--weights-seed", type=int, default=0, help="of the weights")
    parser.add_argument("--leaves", type=int, default=64, help="most leaves that are perturbed")
    parser.add_argument("--answer-s", type=float, default=600.0, help="of another process, seconds")
    return parser


if __name__ == "__main__":
    sys.exit(main())
