"""`rampcli pretrain`: trains a recipe, or prints its plan or its configuration."""

import typer

from rampcli.cli.options import Cfg, ConfigDir, DryRun, Factory, OneStage, Overrides
from rampcli.cli.plan import print_plan
from rampcli.errors import visible


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
    from rampcli.config.rl import refuse_rl

    resolved = compose_words(factory, overrides or [], config_dir=config_dir, resumes=True)
    refuse_rl(
        resolved.config, "this is a run of reinforcement learning", remedy="rampcli rl, or rl=none"
    )
    if cfg:
        from rampcli.report.explain import with_provenance

        typer.echo(visible(with_provenance(resolved), keeps="\n"), nl=False)
    elif dry_run:
        from rampcli.cli.jobs import print_scripts

        print_plan(resolved)
        print_scripts(resolved, one_stage=one_stage)
    else:
        from rampcli.cli.training import train_and_exit

        train_and_exit(resolved, one_stage=one_stage, overrides=overrides or [])
