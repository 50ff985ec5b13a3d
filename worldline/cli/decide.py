"""Decide: one object on one path, or a grid of fabrics and SLOs; no cluster is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from worldline.cli import decide_options as options
from worldline.cli import paper
from worldline.cli.common import JsonOption, run
from worldline.cli.decide_inputs import (
    parse_codec,
    parse_demand,
    parse_fabrics,
    parse_handling,
    parse_horizons,
    parse_rate,
    parse_served,
    parse_transfer,
    refuse_given,
)
from worldline.cli.decide_output import print_decision, print_grid
from worldline.cli.decision import decide
from worldline.cli.fabric import Fabric
from worldline.cli.figures import check_figures, write_figure
from worldline.cli.grid import Demand, grid
from worldline.cli.grid_figure import draw_grid
from worldline.cli.handling import Handling

_REJECTED = 3


def decide_command(
    state: options.State = paper.STATE,
    dirty_rate: options.DirtyRate = paper.DIRTY_RATE,
    horizon: options.Horizon = None,
    rate: options.Rate = None,
    setup: options.Setup = "0",
    digest_rate: options.DigestRate = None,
    verify: options.Verify = None,
    codec_ratio: options.CodecRatio = None,
    codec_rate: options.CodecRate = None,
    decode_rate: options.DecodeRate = None,
    reduced_to: options.ReducedTo = None,
    replay_step: options.ReplayStep = None,
    history_steps: options.HistorySteps = None,
    restart_ok: options.RestartOk = False,
    as_grid: options.Grid = False,
    fabrics: options.Fabrics = None,
    slos: options.Slos = None,
    at_once: options.AtOnce = None,
    warm_share: options.WarmShare = None,
    figures: options.Figures = None,
    as_json: JsonOption = False,
) -> None:
    """Decide whether a state must move and may: the arithmetic of admission.

    First the motion criterion: REDUCE, REPLAY or RESTART where an escape is
    open. Else ADMIT or REJECT by condition (1): T(S) < H and B >= S/H + D.
    With --grid: migrate, prewarm or reject, for each fabric and SLO.

    Defaults are the paper's (arXiv 2607.10389, sections 3.3, 4.1, 6.3-6.5).
    Sizes, rates and durations have units: 2.04GB, 41Gb/s, 12.5GB/s, 500ms.

    For example:
    worldline decide --state 1.67GB --rate 25Gb/s --setup 19ms --dirty-rate 0
    worldline decide --grid --fabric lab=100Gb/s --slo 400ms --slo 1s

    Exit status 0 admitted, or an escape is open, or a grid was made; 1 a
    figure's library is missing; 2 wrong input; 3 rejected.
    """

    async def work() -> int:
        codec = parse_codec(codec_ratio, codec_rate, decode_rate)
        handling = parse_handling(setup, digest_rate, verify, codec)
        one = {
            "--rate": rate,
            "--horizon": horizon,
            "--reduced-to": reduced_to,
            "--replay-step": replay_step,
            "--history-steps": history_steps,
            "--restart-ok": restart_ok,
        }
        many = {
            "--fabric": fabrics,
            "--slo": slos,
            "--at-once": at_once,
            "--warm-share": warm_share,
            "--figure": figures,
        }
        if as_grid:
            refuse_given(one, "is for one path: with --grid use --fabric and --slo")
            demand = parse_demand(state, dirty_rate, at_once, warm_share)
            rows, columns = parse_fabrics(fabrics), parse_horizons(slos)
            return _grid(rows, columns, demand, handling, figures or [], as_json)
        refuse_given(many, "is for the grid: add --grid")
        transfer = parse_transfer(state, dirty_rate, horizon)
        served = parse_served(transfer, reduced_to, replay_step, history_steps, restart_ok)
        decision = decide(served, handling, parse_rate(rate))
        print_decision(decision, as_json)
        return _REJECTED if decision.rejected else 0

    run(work)


def _grid(
    fabrics: Sequence[Fabric],
    horizons_ms: Sequence[float],
    demand: Demand,
    handling: Handling,
    figures: Sequence[Path],
    as_json: bool,
) -> int:
    check_figures(figures, "--figure")
    cells = grid(fabrics, horizons_ms, demand, handling)
    for path in figures:
        write_figure(draw_grid(fabrics, cells, demand, "--figure"), path)
    print_grid(fabrics, cells, demand, figures, as_json)
    return 0
