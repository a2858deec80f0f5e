"""`rampcli rl`: trains a recipe by reinforcement learning, or prints its plan."""

from typing import Annotated

import typer

from rampcli.cli.base import Base
from rampcli.cli.options import AsJson, DryRun, OnePhase, OneStage, Overrides
from rampcli.cli.pretrain import show_or_train
from rampcli.errors import UsageError


def rl(
    base: Base,
    rl_overrides: Overrides = None,
    dry_run: DryRun = False,
    show_dialects: Annotated[bool, typer.Option("--dialects")] = False,
    one_stage: OneStage = False,
    one_phase: OnePhase = False,
    as_json: AsJson = False,
) -> None:
    """Train a recipe by reinforcement learning. Run the same command again to resume.

    Each step generates several responses to each of its prompts, scores them with a reward, and
    trains on them (GRPO). The names of MaxText's documentation are accepted: batch_size (prompts),
    num_generations, and micro_batch_size (pairs of prompt and response per rank; -1 means all).

    Args:
        show_dialects: Print the same batch as MaxText, TRL, verl and NeMo-RL settings.
    """
    from rampcli.cli.composing import compose_rl

    if as_json and not (dry_run or show_dialects):
        raise UsageError("--json prints a plan", remedy="--dry-run --json")
    words = rl_overrides or []
    resolved = compose_rl(base, words)
    if show_dialects:
        from rampcli.cli.dialects import print_dialects

        print_dialects(resolved, as_json=as_json)
    else:
        show_or_train(
            resolved,
            words,
            dry_run=dry_run,
            one_stage=one_stage,
            one_phase=one_phase,
            as_json=as_json,
        )
