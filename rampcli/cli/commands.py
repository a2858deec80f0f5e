"""The commands and their options.

Each command imports what it needs when it runs. So `--help` is fast, and imports neither torch nor
hydra.
"""

from pathlib import Path
from typing import Annotated

import typer

from rampcli.cli.completion import SCRIPTS
from rampcli.cli.options import (
    AsJson,
    Cfg,
    ConfigDir,
    DryRun,
    Factory,
    OneStage,
    Overrides,
)
from rampcli.errors import UsageError, visible


def pretrain(
    factory: Factory,
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    dry_run: DryRun = False,
    cfg: Cfg = False,
    one_stage: OneStage = False,
) -> None:
    """Train a recipe through its ramp. Run the same command again to resume."""
    from rampcli.cli.composing import compose_words
    from rampcli.config.checks.rl import refuse_rl

    resolved = compose_words(factory, overrides or [], config_dir=config_dir, resumes=True)
    refuse_rl(
        resolved.config, "this is a run of reinforcement learning", remedy="rampcli rl, or rl=none"
    )
    if cfg:
        from rampcli.report.explain import with_provenance

        typer.echo(visible(with_provenance(resolved), keeps="\n"), nl=False)
    elif dry_run:
        from rampcli.cli.console import show_plan

        show_plan(resolved)
        from rampcli.cli.jobs import print_scripts

        print_scripts(resolved, one_stage=one_stage)
    else:
        from rampcli.cli.training import train_and_exit

        train_and_exit(resolved, one_stage=one_stage, overrides=overrides or [])


WhatIf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=A,B,C",
        help="Compare plans for several values of a setting. Repeat it for combinations.",
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Plot batch size and nodes to an .svg or .png file."),
]
Measured = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="RUN_DIR",
        help="Use the throughput measured in an earlier run. Repeat it for several runs.",
        exists=True,
    ),
]
ShowDialects = Annotated[
    bool,
    typer.Option(
        "--dialects",
        help="Print the same batch as NeMo, Megatron Bridge, Megatron-LM and MaxText settings.",
    ),
]
ShowSeesaw = Annotated[
    bool, typer.Option("--seesaw", help="Grow the batch instead of decaying the learning rate.")
]
SeesawFactor = Annotated[
    float | None,
    typer.Option(
        metavar="A",
        help="Factor by which --seesaw grows the batch. Default: 2.",
        show_default=False,
    ),
]


def plan(
    factory: Factory,
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    as_json: AsJson = False,
    what_if: WhatIf = None,
    plot: Plot = None,
    measured: Measured = None,
    show_dialects: ShowDialects = False,
    show_seesaw: ShowSeesaw = False,
    seesaw_factor: SeesawFactor = None,
) -> None:
    """Show the stages of a run without starting it.

    Prints batch size, nodes, accumulation, steps, hours and learning rate of each stage. Takes the
    same recipe and settings as pretrain.
    """
    from rampcli.cli.composing import compose_words

    words = overrides or []
    if what_if:
        from rampcli.cli import planning

        given = {
            "--plot": plot,
            "--dialects": show_dialects,
            "--seesaw": show_seesaw,
            "--seesaw-factor": seesaw_factor,
        }
        if name := next(
            (name for name, value in given.items() if value not in (None, False)), None
        ):
            raise UsageError(
                f"--what-if compares several plans, but {name} takes a single one",
                remedy=f"{name} without --what-if",
            )
        if not planning.compare(
            factory, words, what_if, config_dir=config_dir, measured=measured or [], as_json=as_json
        ):
            raise typer.Exit(2)
        return
    resolved = compose_words(factory, words, config_dir=config_dir)
    from rampcli.cli import planning  # imports rich, which is not needed for errors

    if measured:
        resolved = planning.with_measured(resolved, measured)
    lines: list[str] = []
    if seesaw_factor is not None and not show_seesaw:
        raise UsageError(
            "--seesaw-factor needs --seesaw", remedy=f"--seesaw --seesaw-factor {seesaw_factor:g}"
        )
    if show_seesaw:
        resolved, lines = planning.seesaw(resolved, 2.0 if seesaw_factor is None else seesaw_factor)
    if plot is not None:
        planning.draw(resolved, plot)
        lines.append(f"wrote {plot}")
    if show_dialects:
        planning.translate(resolved, as_json=as_json)
    else:
        planning.print_plan(resolved, as_json=as_json)
        for line in () if as_json else lines:
            typer.echo(line)


def explain(
    keys: Annotated[
        list[str],
        typer.Argument(metavar="KEY", help="Settings to explain. KEY=VALUE overrides the recipe."),
    ],
    factory: Annotated[
        str | None,
        typer.Option("--factory", "-f", metavar="NAME", help="Recipe.", show_default=False),
    ] = None,
    config_dir: ConfigDir = None,
    as_json: AsJson = False,
) -> None:
    """Explain what a setting means, its value and where that value comes from."""
    from rampcli.cli.explaining import explain_keys

    explain_keys(keys, factory=factory, config_dir=config_dir, as_json=as_json)


def recipes(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Show what this recipe is made of.", show_default=False
        ),
    ] = None,
    new: Annotated[
        str | None,
        typer.Option("--new", metavar="NAME", help="Write NAME.py, a recipe to begin with."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the recipes, show what one is made of, or write one of your own."""
    from rampcli.cli.recipes import list_recipes, show_recipe

    if new is not None:
        from rampcli.cli.new_recipe import write_recipe

        if recipe is not None or as_json:
            raise UsageError(
                "--new takes neither a recipe nor --json", remedy=f"rampcli recipes --new {new}"
            )
        write_recipe(new)
    elif recipe is None:
        list_recipes(as_json=as_json)
    else:
        show_recipe(recipe, as_json=as_json)


RunDir = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="Run directory, or name of a run below runs/.",
        show_default=False,
    ),
]


def status(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="Run directories, or names of runs below runs/. Default: all runs below runs/.",
            show_default=False,
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh every two seconds until Ctrl-C.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show where runs stand.

    For a single named run, also show what trains it and how to resume it.
    """
    from rampcli.cli.status import show_status

    show_status(runs or [], watch=watch, as_json=as_json)


def cancel(run_dir: RunDir) -> None:
    """Ask a run to save and exit.

    Stops the jobs of the run, or the command that trains it on this machine.
    """
    from rampcli.cli.jobs import cancel_run

    cancel_run(run_dir)


Step = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Use the checkpoint after N steps. Default: the newest.",
        show_default=False,
    ),
]


def generate(
    run_dir: RunDir,
    prompt: Annotated[
        str,
        typer.Option(
            "--prompt", "-p", metavar="TEXT", help="Text to continue.", show_default=False
        ),
    ],
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Maximum number of tokens to generate. Default: as many as fit.",
            show_default=False,
        ),
    ] = None,
    temperature: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="T",
            help="Sampling temperature. 0 always takes the likeliest token.",
        ),
    ] = 0.8,
    top_k: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="K", help="Sample from the K likeliest tokens.", show_default=False
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**62, metavar="N", help="Random seed of sampling.")
    ] = 0,
    step: Step = None,
    as_json: AsJson = False,
) -> None:
    """Continue a text with a trained model."""
    from rampcli.cli.weights import run_on_checkpoint

    options = {
        "prompt": prompt,
        "max-tokens": max_tokens,
        "temperature": temperature,
        "top-k": top_k,
        "seed": seed,
        "step": step,
    }
    run_on_checkpoint("rampcli.weights.generate", run_dir, [], options, as_json=as_json)


def export(
    run_dir: RunDir,
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Folder to create and write to.", show_default=False),
    ],
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Type of the weights: fp32 or bf16. Default: the run's.",
            show_default=False,
        ),
    ] = None,
    step: Step = None,
    as_json: AsJson = False,
) -> None:
    """Export a trained model to a folder for transformers."""
    from rampcli.cli.weights import run_on_checkpoint

    if dtype not in (None, "fp32", "bf16"):
        raise UsageError(
            f"--dtype {dtype} is neither fp32 nor bf16", remedy="--dtype fp32 or --dtype bf16"
        )
    run_on_checkpoint(
        "rampcli.weights.export",
        run_dir,
        [str(folder)],
        {"dtype": dtype, "step": step},
        as_json=as_json,
    )


def import_(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Folder as save_pretrained writes it, or a model of the Hugging Face hub: NAME or"
            " NAME@REVISION.",
            show_default=False,
        ),
    ],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="File to write: CONF/model/NAME.yaml.", show_default=False
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Import a Hugging Face model to train it further.

    Writes the model's settings, and where its weights are, to a file of the config group model.
    """
    from rampcli.cli.weights import import_settings

    import_settings(model, file, as_json=as_json)


def doctor(
    overrides: Overrides = None,
    factory: Annotated[
        str | None,
        typer.Option(
            "--factory",
            "-f",
            metavar="NAME",
            help="Recipe of the run to check.",
            show_default=False,
        ),
    ] = None,
    config_dir: ConfigDir = None,
    as_json: AsJson = False,
) -> None:
    """Check that this machine is ready to train.

    With a recipe, checks what that run needs; otherwise, what any run needs.
    """
    from rampcli.cli.doctor import run_checks

    if not run_checks(factory, overrides or [], config_dir=config_dir, as_json=as_json):
        raise typer.Exit(1)


def completion(
    shell: Annotated[str, typer.Argument(help=f"Shell: {', '.join(SCRIPTS)}.")],
) -> None:
    """Print the script that enables completion in a shell."""
    if shell not in SCRIPTS:
        raise UsageError(
            f"there is no completion for {shell}",
            remedy=" or ".join(f"rampcli completion {name}" for name in SCRIPTS),
        )
    typer.echo(SCRIPTS[shell], nl=False)
