"""Decide's inputs: the texts of options, parsed once into what the arithmetic takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from worldline.admissibility.codec import Codec
from worldline.admissibility.condition import Transfer
from worldline.admissibility.motion import ServedObject
from worldline.admissibility.schedule import VerificationPlacement
from worldline.cli import paper, quantities
from worldline.cli.fabric import Fabric, parse_fabric
from worldline.cli.grid import Demand
from worldline.cli.handling import Handling
from worldline.errors import InvalidInput
from worldline.fields import non_negative


def parse_handling(
    setup: str,
    digest_rate: str | None,
    verify: VerificationPlacement | None,
    codec: Codec | None,
) -> Handling:
    """How the bytes are handled.

    Raises:
        InvalidInput: a value is wrong, or a placement without the engine that is placed.
    """
    if verify is not None and digest_rate is None:
        raise InvalidInput(
            "--verify places a digest engine: say its --digest-rate, or leave --verify out where "
            "--rate is of verified bytes already",
            field="--verify",
        )
    return Handling(
        setup_ms=quantities.setup_ms(setup, "--setup"),
        codec=codec,
        digest_rate_bytes_per_s=(
            None if digest_rate is None else quantities.rate(digest_rate, "--digest-rate")
        ),
        placement=verify or VerificationPlacement.PIPELINED,
    )


def parse_codec(ratio: float | None, rate: str | None, decode_rate: str | None) -> Codec | None:
    """The codec, None without one; it decodes as fast as it encodes where nothing else is said.

    Raises:
        InvalidInput: a value is wrong, or one half of a codec.
    """
    if ratio is None:
        refuse_given(
            {"--codec-rate": rate, "--decode-rate": decode_rate},
            "says nothing without a codec: add --codec-ratio",
        )
        return None
    if rate is None:
        raise InvalidInput(
            "a codec costs time: say its --codec-rate beside --codec-ratio", field="--codec-rate"
        )
    encode_rate = quantities.rate(rate, "--codec-rate")
    with naming_options({"ratio": "--codec-ratio"}):
        return Codec(
            ratio=ratio,
            encode_rate_bytes_per_s=encode_rate,
            decode_rate_bytes_per_s=(
                encode_rate
                if decode_rate is None
                else quantities.rate(decode_rate, "--decode-rate")
            ),
        )


def parse_transfer(state: str, dirty_rate: str, horizon: str | None) -> Transfer:
    """What must move, and by when.

    Raises:
        InvalidInput: a value is wrong.
    """
    return Transfer(
        state_bytes=quantities.state_bytes(state, "--state"),
        horizon_ms=quantities.duration_ms(
            paper.HORIZON if horizon is None else horizon, "--horizon"
        ),
        dirty_rate_bytes_per_s=quantities.dirty_rate(dirty_rate, "--dirty-rate"),
    )


def parse_rate(text: str | None) -> float:
    """The path's rate in bytes a second; the paper's where none is given.

    Raises:
        InvalidInput: the value is wrong.
    """
    return quantities.rate(paper.RATE if text is None else text, "--rate")


def parse_served(
    transfer: Transfer,
    reduced_to: str | None,
    replay_step: str | None,
    history_steps: int | None,
    restart_ok: bool,
) -> ServedObject:
    """The object with its escapes.

    Raises:
        InvalidInput: a value is wrong, or half of what a replay takes.
    """
    if (replay_step is None) != (history_steps is None):
        raise InvalidInput(
            "a replay takes --history-steps times --replay-step: say both or neither",
            field="--replay-step" if replay_step is None else "--history-steps",
        )
    reduced = None if reduced_to is None else quantities.state_bytes(reduced_to, "--reduced-to")
    step_ms = None if replay_step is None else quantities.duration_ms(replay_step, "--replay-step")
    names = {"reduced_bytes": "--reduced-to", "history_steps": "--history-steps"}
    with naming_options(names):
        return ServedObject(
            transfer=transfer,
            reduced_bytes=reduced,
            history_steps=history_steps or 0,
            replay_step_ms=step_ms,
            trajectory_valued=not restart_ok,
        )


def parse_demand(
    state: str, dirty_rate: str, at_once: int | None, warm_share: float | None
) -> Demand:
    """What every cell of the grid is asked for.

    Raises:
        InvalidInput: a value is wrong.
    """
    return Demand(
        state_bytes=quantities.state_bytes(state, "--state"),
        dirty_rate_bytes_per_s=quantities.dirty_rate(dirty_rate, "--dirty-rate"),
        at_once=paper.AT_ONCE if at_once is None else at_once,
        warm_share=1.0
        if warm_share is None
        else non_negative(warm_share, "--warm-share", at_most=1),
    )


def parse_fabrics(texts: Sequence[str] | None) -> tuple[Fabric, ...]:
    """The rows of the grid; the paper's where none is given.

    Raises:
        InvalidInput: one is wrong, or two have one name.
    """
    if not texts:
        return paper.FABRICS
    fabrics = tuple(parse_fabric(text, "--fabric") for text in texts)
    names = [fabric.name for fabric in fabrics]
    if len(set(names)) != len(names):
        raise InvalidInput("--fabric gives two rows one name", field="--fabric")
    return fabrics


def parse_horizons(texts: Sequence[str] | None) -> tuple[float, ...]:
    """The columns of the grid, in milliseconds; the paper's where none is given.

    Raises:
        InvalidInput: one is wrong.
    """
    return tuple(quantities.duration_ms(text, "--slo") for text in texts or paper.SLOS)


def refuse_given(given: Mapping[str, object], why: str) -> None:
    """What a mode does not read is refused: ignored, it would look as if it had counted.

    Raises:
        InvalidInput: an option has a value; `field` is its name.
    """
    for option, value in given.items():
        if value is not None and value is not False and value != []:
            raise InvalidInput(f"{option} {why}", field=option)


@contextlib.contextmanager
def naming_options(options: Mapping[str, str]) -> Iterator[None]:
    """Name the option where the arithmetic names its own field."""
    try:
        yield
    except InvalidInput as error:
        option = options.get(error.field or "")
        if option is None:
            raise
        raise InvalidInput(error.message, field=option) from None
