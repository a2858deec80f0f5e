"""The commands. What they need is imported when they run, so that `--help` is fast and needs neither torch nor hydra."""

import gc
import sys
from pathlib import Path
from typing import Annotated

import typer

from rampcli.cli.completion import SCRIPTS
from rampcli.errors import UsageError, visible

Factory = Annotated[
    str,
    typer.Option(
        "--factory",
        "-f",
        help="A recipe: llama3_8b, or 'llama3_8b(num_nodes=2)'.",
        show_default=False,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Settings laid over the recipe.", show_default=False
    ),
]
ConfigDir = Annotated[
    Path | None,
    typer.Option(
        "--config-dir", help="A folder of further config groups.", exists=True, file_okay=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def pretrain(
    factory: Factory,
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Compose, check and print the plan; start nothing.")
    ] = False,
    cfg: Annotated[
        bool,
        typer.Option(
            "--cfg", help="Print the composed configuration, with who set what, and exit."
        ),
    ] = False,
    one_stage: Annotated[
        bool, typer.Option("--one-stage", help="End at the next stage, and say how to go on.")
    ] = False,
) -> None:
    """Train a recipe through its ramp. The same command on the same run directory goes on where it stopped."""
    from rampcli.cli.composing import compose_words

    resolved = compose_words(factory, overrides or [], config_dir=config_dir, resumes=True)
    if cfg:
        from rampcli.config.explain import with_provenance

        typer.echo(visible(with_provenance(resolved), keeps="\n"), nl=False)
    elif dry_run:
        from rampcli.cli.console import show_plan

        show_plan(resolved)
        if resolved.config.launch.launcher == "slurm":
            from rampcli.cli.jobs import show_scripts

            show_scripts(resolved)
    else:
        from rampcli.cli.training import train

        gc.enable()
        outcome = train(
            resolved,
            one_stage=one_stage,
            command=["rampcli", *sys.argv[1:]],
            overrides=overrides or [],
        )
        raise typer.Exit(outcome.exit_code)


def plan(
    factory: Factory,
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    as_json: AsJson = False,
    what_if: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=A,B,C", help="Compare the plans for several values of a setting."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw batch size and nodes: an .svg or .png file."),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN_DIR", help="Take the throughput from an earlier run.", exists=True
        ),
    ] = None,
    show_dialects: Annotated[
        bool,
        typer.Option(
            "--dialects", help="Print the batch in the words of NeMo, Megatron-LM and MaxText."
        ),
    ] = False,
    show_seesaw: Annotated[
        bool,
        typer.Option("--seesaw", help="Let the batch grow instead of the learning rate's decay."),
    ] = False,
    seesaw_factor: Annotated[
        float | None,
        typer.Option(
            metavar="A",
            help="By which a batch of --seesaw grows: 2, unless given.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show the stages of a run: batch, nodes, accumulation, samples, steps, hours and learning rate. Takes the arguments of pretrain."""
    from rampcli.cli.composing import compose_words

    words = overrides or []
    if what_if is not None:
        from rampcli.cli import planning

        for name, given in (
            ("--plot", plot),
            ("--dialects", show_dialects),
            ("--seesaw", show_seesaw),
        ):
            if given:
                raise UsageError(
                    f"--what-if compares plans, and {name} is about one",
                    remedy=f"{name} without --what-if",
                )
        if not planning.compare(
            factory, words, what_if, config_dir=config_dir, measured=measured, json_wanted=as_json
        ):
            raise typer.Exit(2)
        return
    resolved = compose_words(factory, words, config_dir=config_dir)
    from rampcli.cli import planning  # and with it rich, once there is something to show

    if measured is not None:
        resolved = planning.with_measured(resolved, measured)
    lines: list[str] = []
    if seesaw_factor is not None and not show_seesaw:
        raise UsageError(
            "--seesaw-factor is for --seesaw", remedy=f"--seesaw --seesaw-factor {seesaw_factor:g}"
        )
    if show_seesaw:
        resolved, lines = planning.seesaw(resolved, 2.0 if seesaw_factor is None else seesaw_factor)
    if plot is not None:
        planning.draw(resolved, plot)
        lines.append(f"wrote {plot}")
    if show_dialects:
        planning.translate(resolved, json_wanted=as_json)
    elif as_json:
        typer.echo(planning.as_json(resolved.plan.to_json()))
    else:
        from rampcli.cli.console import show_plan

        show_plan(resolved)
        for line in lines:
            typer.echo(line)


def explain(
    keys: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY...", help="Settings; KEY=VALUE words are laid over the recipe."
        ),
    ],
    factory: Annotated[
        str | None, typer.Option("--factory", "-f", help="The recipe.", show_default=False)
    ] = None,
    config_dir: ConfigDir = None,
    as_json: AsJson = False,
) -> None:
    """Say what a setting is, what it is set to, and who said so."""
    from rampcli.cli.explaining import explain_keys

    explain_keys(keys, factory=factory, config_dir=config_dir, as_json=as_json)


def recipes(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Show what this recipe is made of.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the recipes, or show what one is made of."""
    from rampcli.cli.recipes import list_recipes, show_recipe

    if recipe is None:
        list_recipes(as_json=as_json)
    else:
        show_recipe(recipe, as_json=as_json)


RunDir = Annotated[
    Path,
    typer.Argument(metavar="RUN_DIR", help="The run directory, runs/NAME.", show_default=False),
]


def status(run_dir: RunDir, as_json: AsJson = False) -> None:
    """Say where a run stands, who trains it, and how to go on."""
    from rampcli.cli.jobs import tell_status

    tell_status(run_dir, as_json=as_json)


def cancel(run_dir: RunDir) -> None:
    """Have a run save and end: its jobs, or the command that trains it on this machine."""
    from rampcli.cli.jobs import cancel_run

    cancel_run(run_dir)


Step = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="The checkpoint after N steps: the newest, unless given.",
        show_default=False,
    ),
]


def generate(
    run_dir: RunDir,
    prompt: Annotated[
        str, typer.Option("--prompt", "-p", help="What to continue.", show_default=False)
    ],
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="As many as there is room for, unless given.", show_default=False),
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0 takes the likeliest token every time.")
    ] = 0.8,
    top_k: Annotated[
        int | None,
        typer.Option(min=1, help="Draw from the K likeliest tokens.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**62, help="Of the draws.")] = 0,
    step: Step = None,
    as_json: AsJson = False,
) -> None:
    """Let a trained model continue a text."""
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
        typer.Argument(metavar="FOLDER", help="Where to write; it is made.", show_default=False),
    ],
    dtype: Annotated[
        str | None,
        typer.Option(
            help="fp32 or bf16: what the run computes with, unless given.", show_default=False
        ),
    ] = None,
    step: Step = None,
    as_json: AsJson = False,
) -> None:
    """Write a trained model as a folder that transformers loads."""
    from rampcli.cli.weights import run_on_checkpoint

    if dtype not in (None, "fp32", "bf16"):
        raise UsageError(
            f"--dtype {dtype}: there is fp32 and bf16", remedy="--dtype fp32 or --dtype bf16"
        )
    run_on_checkpoint(
        "rampcli.weights.export",
        run_dir,
        [str(folder)],
        {"dtype": dtype, "step": step},
        as_json=as_json,
    )


def import_(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="As save_pretrained writes it.", show_default=False),
    ],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The settings: CONF/model/NAME.yaml.", show_default=False
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Write a Hugging Face model's settings as a model to train. It starts from that model's weights."""
    from rampcli.cli.weights import import_settings

    import_settings(folder, file, as_json=as_json)


def doctor(
    overrides: Overrides = None,
    factory: Annotated[
        str | None, typer.Option("--factory", "-f", help="The recipe of a run.", show_default=False)
    ] = None,
    config_dir: ConfigDir = None,
    as_json: AsJson = False,
) -> None:
    """Check what a launch needs of this machine; with a recipe, what that run needs."""
    from rampcli.cli.doctor import examine

    if not examine(factory, overrides or [], config_dir=config_dir, as_json=as_json):
        raise typer.Exit(1)


def completion(shell: Annotated[str, typer.Argument(help=f"One of {', '.join(SCRIPTS)}.")]) -> None:
    """Print the script that lets a shell complete words of rampcli."""
    if shell not in SCRIPTS:
        raise UsageError(
            f"there is no completion for {shell}",
            remedy=" or ".join(f"rampcli completion {name}" for name in SCRIPTS),
        )
    typer.echo(SCRIPTS[shell], nl=False)
