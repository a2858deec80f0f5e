"""`--dialects`: prints a batch as settings of other systems."""

import json
from dataclasses import asdict

import typer

from rampcli.batch.ramp import RampSchedule
from rampcli.batch.step_schedule import schedule_text
from rampcli.cli.console import build_console, say
from rampcli.planning.run_plan import Resolved, ResolvedPhase
from rampcli.settings.rl import max_response_tokens
from rampcli.words import translate_plan
from rampcli.words.rl import translate_pairs
from rampcli.words.translation import Source, Translation


def print_dialects(resolved: Resolved, *, as_json: bool) -> None:
    """Prints the batch as settings of each system, and notes what these cannot express.

    Each phase with a name is translated as a run of its own, because no system has phases. The JSON
    then maps the name of a phase to its translations.
    """
    found = {phase.plan.name: _translations(phase) for phase in resolved.phases}
    if as_json:
        data = {
            name: {system: asdict(one) for system, one in translations.items()}
            for name, translations in found.items()
        }
        typer.echo(json.dumps(data.get(None, data), indent=1))
        return
    for name, translations in found.items():
        for system, translation in translations.items():
            title = f"# {system}" if name is None else f"# {system}, phase {name}"
            differences = (f"#   not the same: {one}" for one in translation.unsaid)
            say(build_console(), title, str(translation), *differences)


def _translations(phase: ResolvedPhase) -> dict[str, Translation]:
    """Returns a phase in the words of each system, as a run that begins with it."""
    config, plan = phase.config, phase.plan
    if not plan.stages:
        return {}  # The phase has ended, and fits no nodes of today.
    batch = phase.pairs(max(plan.stages, key=lambda stage: stage.global_batch_size))
    if batch is not None:
        return translate_pairs(
            batch,
            num_stages=len(plan.extents),
            temperature=config.rl.temperature,
            max_response_tokens=max_response_tokens(config),
        )
    rampup, schedule = config.model.rampup_batch_size, config.model.step_batch_size_schedule
    if rampup is not None and _continues_ramp(phase):
        rampup, schedule = None, schedule_text(plan.ramp.thresholds)
    return translate_plan(
        Source(
            plan=plan,
            rampup_batch_size=rampup,
            step_batch_size_schedule=schedule,
            data_parallel_shard_size=config.parallel.data_parallel_shard_size,
            num_pipeline_microbatches=config.parallel.num_pipeline_microbatches,
            expansion_factor_real_data=config.data.expansion_factor_real_data,
        )
    )


def _continues_ramp(phase: ResolvedPhase) -> bool:
    """Returns whether a phase begins within the ramp of its run, which its plan has the rest of."""
    config, ramp = phase.config, phase.plan.ramp
    whole = RampSchedule.from_rampup(
        config.model.rampup_batch_size,
        global_batch_size=ramp.target,
        semantics=config.rampup.semantics,
    )
    return len(ramp.thresholds) > 1 and ramp.thresholds != whole.thresholds
