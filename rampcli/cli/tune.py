"""`rampcli tune`: finds the micro batch size to use, or where the time of a step goes."""

import gc
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rampcli.cli.base import Base
from rampcli.cli.options import AsJson, Overrides, plot_of
from rampcli.errors import UsageError

if TYPE_CHECKING:
    from rampcli.planning.run_plan import Resolved


def tune(
    base: Base,
    overrides: Overrides = None,
    exhaustive: Annotated[
        bool,
        typer.Option("--exhaustive", help="Try every size up to the first that does not fit."),
    ] = False,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate", help="Estimate the memory of each size without starting anything."
        ),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Ignore earlier measurements, and measure again.")
    ] = False,
    steps: Annotated[
        int,
        typer.Option(
            min=1, max=10_000, metavar="N", help="Maximum number of steps to time for each size."
        ),
    ] = 100,
    timeout: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="Time limit of each trial.")
    ] = 600.0,
    diagnose: Annotated[
        bool,
        typer.Option(
            "--diagnose",
            help="Measure where the time of a step of the run goes.",
        ),
    ] = False,
    phase: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Phase of the run to measure, if it has several."),
    ] = None,
    plot: Annotated[Path | None, plot_of("throughput and time per step")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the micro batch size that this machine should run.

    Takes real steps with each size in processes of their own, and times them. Also finds the
    largest size that fits.
    """
    from rampcli.cli.composing import compose_words
    from rampcli.config.phases import refuse_rl
    from rampcli.tune.sizes import run_of_phase

    others = {"--exhaustive": exhaustive, "--fresh": fresh, "--estimate": estimate, "--plot": plot}
    for name, given in others.items():
        if diagnose and given:
            raise UsageError(
                f"--diagnose measures a single size, but {name} is about several",
                remedy=f"--diagnose without {name}",
            )
    run = compose_words(base, overrides or [])
    refuse_rl(
        run.config,
        "tune measures steps of pretraining, and this is a run of reinforcement learning",
        remedy="rl=none",
    )
    resolved = run_of_phase(run, phase)
    if estimate:
        _print_estimates(resolved, as_json=as_json)
        return
    gc.enable()
    from rampcli.tune.trial_files import Effort

    effort = Effort(most_steps=steps, timeout_s=timeout)
    if diagnose:
        from rampcli.cli import tune_diagnosis

        code = tune_diagnosis.diagnose(resolved, effort=effort, as_json=as_json)
    else:
        from rampcli.cli import tune_search

        code = tune_search.search(
            resolved,
            phase=None if resolved is run else phase or next(iter(run.config.phases)),
            effort=effort,
            fresh=fresh,
            exhaustive=exhaustive,
            as_json=as_json,
            plot=plot,
        )
    raise typer.Exit(code)


def _print_estimates(resolved: "Resolved", *, as_json: bool) -> None:
    """Prints the estimated memory of each micro batch size that the run admits. Starts nothing."""
    from rampcli.cli.console import build_console, say
    from rampcli.report.memory import estimate_table, estimates
    from rampcli.tune.sizes import candidates

    sizes = [candidate.micro_batch_size for candidate in candidates(resolved)]
    if as_json:
        typer.echo(json.dumps(estimates(resolved, sizes), indent=1))
        return
    say(
        build_console(),
        estimate_table(resolved, sizes),
        "estimated per rank, not measured; without the CUDA context, communication buffers and"
        " fragmentation",
    )
