"""The command `rampcli tune` and its options. It imports what it needs when it runs."""

import gc
from pathlib import Path
from typing import Annotated

import typer

from rampcli.cli.options import AsJson, ConfigDir, Factory, Overrides
from rampcli.errors import UsageError


def tune(
    factory: Factory,
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    exhaustive: Annotated[
        bool,
        typer.Option("--exhaustive", help="Try every size up to the first that does not fit."),
    ] = False,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Estimate the memory of each size. Start nothing.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again what was measured before.")
    ] = False,
    steps: Annotated[
        int,
        typer.Option(min=1, max=10_000, metavar="N", help="Most steps to time for each size."),
    ] = 100,
    timeout: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="Time limit of each trial.")
    ] = 600.0,
    diagnose: Annotated[
        bool,
        typer.Option("--diagnose", help="Measure where the time of the run's own step goes."),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Plot throughput and time per step to an .svg or .png file."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the micro batch size that this machine can run, and the one that it should run.

    Takes real steps with each size in processes of their own, and times them.
    """
    from rampcli.cli.composing import compose_words
    from rampcli.config.checks.rl import refuse_rl

    others = {"--exhaustive": exhaustive, "--fresh": fresh, "--estimate": estimate, "--plot": plot}
    for name, given in others.items():
        if diagnose and given:
            raise UsageError(
                f"--diagnose measures a single size, but {name} is about several",
                remedy=f"--diagnose without {name}",
            )
    resolved = compose_words(factory, overrides or [], config_dir=config_dir)
    refuse_rl(
        resolved.config,
        "tune measures steps of pretraining, and this is a run of reinforcement learning",
        remedy="rl=none",
    )
    from rampcli.tune.trial import Effort

    if estimate:
        from rampcli.cli import tuning

        tuning.estimate(resolved, as_json=as_json)
        return
    gc.enable()
    effort = Effort(most_steps=steps, timeout_s=timeout)
    if diagnose:
        from rampcli.cli import diagnosing

        code = diagnosing.diagnose(resolved, effort=effort, as_json=as_json)
    else:
        from rampcli.cli import tuning

        code = tuning.tune(
            resolved,
            effort=effort,
            fresh=fresh,
            exhaustive=exhaustive,
            as_json=as_json,
            plot=plot,
        )
    raise typer.Exit(code)
