"""`--dialects`: prints a batch as settings of other systems."""

import json
from dataclasses import asdict

import typer

from rampcli.cli.console import build_console, say
from rampcli.planning.run_plan import Resolved
from rampcli.settings.rl import max_response_tokens
from rampcli.words import translate_plan
from rampcli.words.rl import translate_pairs
from rampcli.words.translation import Source, Translation


def print_dialects(resolved: Resolved, *, as_json: bool) -> None:
    """Prints the batch as settings of each system, and notes what these cannot express."""
    translations = _translations(resolved)
    if as_json:
        typer.echo(json.dumps({name: asdict(one) for name, one in translations.items()}, indent=1))
        return
    for name, translation in translations.items():
        differences = (f"#   not the same: {one}" for one in translation.unsaid)
        say(build_console(), f"# {name}", str(translation), *differences)


def _translations(resolved: Resolved) -> dict[str, Translation]:
    (phase,) = resolved.phases
    config, plan = phase.config, phase.plan
    batch = phase.pairs(max(plan.stages, key=lambda stage: stage.global_batch_size))
    if batch is not None:
        return translate_pairs(
            batch,
            num_stages=len(plan.extents),
            temperature=config.rl.temperature,
            max_response_tokens=max_response_tokens(config),
        )
    return translate_plan(
        Source(
            plan=plan,
            rampup_batch_size=config.model.rampup_batch_size,
            step_batch_size_schedule=config.model.step_batch_size_schedule,
            data_parallel_shard_size=config.parallel.data_parallel_shard_size,
            num_pipeline_microbatches=config.parallel.num_pipeline_microbatches,
            expansion_factor_real_data=config.data.expansion_factor_real_data,
        )
    )
