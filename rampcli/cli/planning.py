"""`rampcli plan`: plans as JSON or a picture, compared, timed and in other systems' words."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import typer

from rampcli.batch.node_policies import NODE_POLICIES
from rampcli.batch.pairs import GENERATIONS_KEY
from rampcli.batch.ramp import RAMP_KEY, RampSchedule
from rampcli.batch.step_schedule import SCHEDULE_KEY, to_text
from rampcli.batch.throughput import EFFICIENCY_KEY, RESTART_KEY, check_curve
from rampcli.batch.throughput import to_text as points_to_text
from rampcli.batch.training_plan import TrainingPlan
from rampcli.cli.composing import compose_words
from rampcli.cli.console import build_console, print_table, say, show_plan
from rampcli.cli.pictures import writing_picture
from rampcli.config.checks.rl import is_rl, max_response_tokens, unit_of
from rampcli.config.compose import apply_overrides
from rampcli.config.groups import group_names
from rampcli.config.layers import Precedence, sources_named, stack_of
from rampcli.config.words import MOST_VALUES, drop_launcher_section, read_values
from rampcli.errors import Report, UsageError, UsageErrors
from rampcli.planning.resolve import resolve
from rampcli.planning.run_plan import Resolved
from rampcli.report.comparison import comparison_table
from rampcli.report.memory import plan_with_memory
from rampcli.runs.measured import read_measured
from rampcli.schedule.seesaw import staircase, steps_in_the_limit
from rampcli.words import translate_plan
from rampcli.words.rl import PairSource, translate_pairs
from rampcli.words.translation import Translation


def with_measured(resolved: Resolved, paths: Sequence[Path]) -> Resolved:
    """Returns the plan with the throughput of earlier runs, and with the time of their restarts.

    `rampup.restart_s` is left as it is if it was typed.
    """
    with sources_named(resolved.config):
        measured = read_measured(paths, resolved.config)
    words = [f"{EFFICIENCY_KEY}='{points_to_text(measured.points)}'"]
    is_typed = stack_of(resolved.config).precedence(RESTART_KEY) is Precedence.USER
    if measured.restart_s is not None and not is_typed:
        words.append(f"{RESTART_KEY}={measured.restart_s}")
    place = f"measured in {', '.join(map(str, paths))}"
    return resolve(apply_overrides(resolved.config, words, place=place))


def compare(
    factory: str,
    words: Sequence[str],
    what_if: Sequence[str],
    *,
    config_dir: Path | None,
    measured: Sequence[Path],
    as_json: bool,
) -> bool:
    """Prints a plan for each value of a setting, or each combination of several, side by side.

    Args:
        factory: the recipe.
        words: overrides of the command line.
        what_if: `KEY=VALUE,VALUE,...`, each with another key.
        config_dir: the user's option files, or None.
        measured: directories to take the throughput from.
        as_json: print JSON.

    Returns:
        Whether at least one plan fits.

    Raises:
        UsageError: `what_if` does not have this form, every plan has the same error, or the plan
            does not depend on a setting.
    """
    values = _values_of(what_if, config_dir)
    others = [word for word in words if drop_launcher_section(word).partition("=")[0] not in values]

    def plan_with(combination: Sequence[str]) -> Resolved | UsageError:
        try:
            resolved = compose_words(factory, [*others, *combination], config_dir=config_dir)
            return with_measured(resolved, measured) if measured else resolved
        except UsageError as error:
            return error

    combinations = list(product(*values.values()))
    if len(combinations) > MOST_VALUES:
        raise UsageError(
            f"--what-if: {len(combinations)} combinations of values; at most {MOST_VALUES} are"
            " compared",
            keys=tuple(values),
            remedy="fewer values",
        )
    found = [plan_with(combination) for combination in combinations]
    _raise_shared_errors(found)
    _check_curves([one for one in found if isinstance(one, Resolved)])
    _check_matters(values, combinations, found, f"rampcli sweep --factory {factory}")
    variants = [(" ".join(words), one) for words, one in zip(combinations, found, strict=True)]
    _print_comparison(variants, as_json=as_json)
    return any(isinstance(one, Resolved) for one in found)


def _values_of(what_if: Sequence[str], config_dir: Path | None) -> dict[str, list[str]]:
    """Returns the words `KEY=VALUE` for each key of `--what-if`.

    Raises:
        UsageError: a word does not have the form `KEY=VALUE,VALUE,...`, or a key comes twice.
    """
    values: dict[str, list[str]] = {}
    for word in what_if:
        try:
            key, texts = read_values(word, group_names(config_dir))
            if key in values:
                raise UsageError(f"{key} is given twice", keys=(key,), remedy=f"{key}=A,B,C")
        except UsageError as error:
            error.set_by = ("--what-if",)
            if "=" not in word:
                error.remedy = "--what-if trainer.num_nodes=8,16,32"
            raise
        values[key] = [f"{key}={text}" for text in texts]
    return values


def _check_matters(
    values: Mapping[str, Sequence[str]],
    combinations: Sequence[Sequence[str]],
    found: Sequence[Resolved | UsageError],
    sweep: str,
) -> None:
    """Checks that each setting changes the plan, so that no two rows of the table are equal.

    Raises:
        UsageError: one does not.
    """
    if any(isinstance(one, UsageError) for one in found):
        return
    plans = [(one.plan, plan_with_memory(one)) for one in found if isinstance(one, Resolved)]
    for place, (key, words) in enumerate(values.items()):
        alike: dict[tuple[str, ...], list[Any]] = {}
        for combination, plan in zip(combinations, plans, strict=True):
            rest = (*combination[:place], *combination[place + 1 :])
            alike.setdefault(rest, []).append(plan)
        if len(words) > 1 and all(one == group[0] for group in alike.values() for one in group):
            texts = ",".join(word.partition("=")[2] for word in words)
            raise UsageError(
                f"--what-if {key}={texts}: the plan is the same for each value",
                keys=(key,),
                set_by=("--what-if",),
                remedy=f"{sweep} {key}={texts}, which trains with each value",
            )


def _check_curves(variants: Sequence[Resolved]) -> None:
    """Checks that plans with different micro batch sizes have a throughput for each.

    Raises:
        UsageError: `rampup.efficiency` names no micro batch sizes, and the plans have several.
    """
    sizes = [stage.micro_batch_size for variant in variants for stage in variant.plan.stages]
    for variant in variants:
        if variant.config.rampup.efficiency is not None:
            with sources_named(variant.config):
                check_curve(variant.config.rampup.efficiency, sizes)


def _print_comparison(
    variants: Sequence[tuple[str, Resolved | UsageError]], *, as_json: bool
) -> None:
    if as_json:
        rows = [
            {"words": word, "plan": None, "error": found.message}
            if isinstance(found, UsageError)
            else {"words": word, "plan": plan_with_memory(found), "error": None}
            for word, found in variants
        ]
        typer.echo(json.dumps(rows, indent=1))
        return
    console = build_console()
    print_table(console, comparison_table(variants))
    for word, found in variants:
        if isinstance(found, UsageError):
            say(console, f"\n{word} does not fit: {found.message}")


def _raise_shared_errors(found: Sequence[Resolved | UsageError]) -> None:
    """Raises the errors that every value has: they do not depend on it."""
    each = [
        {str(one): one for one in (error.errors if isinstance(error, UsageErrors) else [error])}
        for error in found
        if isinstance(error, UsageError)
    ]
    if len(each) == len(found):
        report = Report()
        report.errors = [
            error for text, error in each[0].items() if all(text in other for other in each)
        ]
        report.close()


def draw(resolved: Resolved, path: Path) -> None:
    """Writes a picture of a plan.

    Raises:
        UsageError: as `writing_picture`.
    """
    with writing_picture(path):
        from rampcli.report.plots import plot_plan

        config = resolved.config
        plot_plan(resolved.plan, path, title=config.name, unit=unit_of(config))


def print_plan(resolved: Resolved, *, as_json: bool) -> None:
    """Prints a plan as a table, or as JSON."""
    if as_json:
        typer.echo(json.dumps(plan_with_memory(resolved), indent=1))
    else:
        show_plan(resolved)


def translate(resolved: Resolved, *, as_json: bool) -> None:
    """Prints the batch in each system's words, with the differences that they cannot express."""
    translations = _translations(resolved)
    if as_json:
        typer.echo(json.dumps({name: asdict(one) for name, one in translations.items()}, indent=1))
        return
    console = build_console()
    for name, translation in translations.items():
        say(console, f"# {name}")
        say(console, str(translation))
        for difference in translation.unsaid:
            say(console, f"#   not the same: {difference}")


def _translations(resolved: Resolved) -> dict[str, Translation]:
    config, model, parallel = resolved.config, resolved.config.model, resolved.config.parallel
    stages = resolved.plan.stages
    batch = resolved.pairs(max(stages, key=lambda stage: stage.global_batch_size))
    if batch is not None:
        return translate_pairs(
            PairSource(
                batch=batch,
                num_stages=resolved.plan.number_of_stages,
                temperature=config.rl.temperature,
                max_response_tokens=max_response_tokens(config),
            )
        )
    return translate_plan(
        resolved.plan,
        rampup_batch_size=model.rampup_batch_size,
        step_batch_size_schedule=model.step_batch_size_schedule,
        data_parallel_shard_size=parallel.data_parallel_shard_size,
        num_pipeline_microbatches=parallel.num_pipeline_microbatches,
        expansion_factor_real_data=config.data.expansion_factor_real_data,
    )


def seesaw(resolved: Resolved, factor: float) -> tuple[Resolved, list[str]]:
    """Returns a plan whose batch grows where the learning rate would fall, and lines about it.

    Args:
        resolved: a plan with a constant batch.
        factor: growth of the batch from one stair to the next; above 1.

    Raises:
        UsageError: the batch is scheduled already, the run has no end, or the batch does not grow;
            or this is a run of reinforcement learning.
    """
    with sources_named(resolved.config):
        _check_seesaw(resolved, factor)
    plan, config = resolved.plan, resolved.config
    assert plan.end_sample is not None
    assert plan.end_step is not None
    stage, rate, end = plan.stages[0], resolved.learning_rate(), plan.end_sample
    peak = config.optim.lr or 1.0

    def relative_rate(consumed_samples: int) -> float:
        if consumed_samples < rate.warmup_samples:
            return 1.0
        return rate.at(consumed_samples, global_batch_size=stage.global_batch_size) / peak

    stairs = staircase(
        relative_rate,
        global_batch_size=stage.global_batch_size,
        unit=NODE_POLICIES[config.rampup.node_policy].batch_unit(
            stage.num_nodes, micro_batch_size=stage.micro_batch_size, fleet=plan.fleet
        ),
        factor=factor,
        first_sample=rate.warmup_samples,
        end_sample=end,
    )
    if len(stairs.thresholds) == 1:
        with sources_named(config):
            raise UsageError(
                "--seesaw grows the batch where the learning rate falls,"
                " and this one falls too little for one stair",
                keys=("schedule.decay_style", "optim.lr", "optim.min_lr"),
                remedy="schedule.decay_style=cosine, a smaller optim.min_lr"
                " or a smaller --seesaw-factor",
            )
    words = _seesaw_words(stairs, plan, warmup_samples=rate.warmup_samples)
    grown = resolve(apply_overrides(config, words, place="--seesaw"))
    limit = steps_in_the_limit(
        relative_rate, global_batch_size=stage.global_batch_size, end_sample=end
    )
    saved = 1 - (grown.plan.end_step or 0) / plan.end_step
    lines = [
        f"seesaw (arXiv 2510.14717): {plan.end_step:,} steps become {grown.plan.end_step:,},"
        f" {saved:.1%} fewer; {1 - limit / plan.end_step:.1%} in the limit of small stairs",
        "train it with:",
        "  " + " ".join(f'"{word}"' if " " in word else word for word in words),
    ]
    return grown, lines


def _seesaw_words(stairs: RampSchedule, plan: TrainingPlan, *, warmup_samples: int) -> list[str]:
    """Returns the overrides that turn a plan into its staircase."""
    return [
        f"{SCHEDULE_KEY}='{to_text(stairs.thresholds)}'",
        "model.rampup_batch_size=null",
        "model.global_batch_size=null",
        "trainer.accumulate_grad_batches=null",
        f"data.micro_batch_size={plan.stages[0].micro_batch_size}",
        "schedule.decay_style=seesaw",
        "schedule.wsd_decay_samples=null",
        "schedule.batch_coupling=none",
        f"optim.warmup_samples={warmup_samples}",
        "optim.warmup_steps=null",
        "trainer.max_steps=null",
        "trainer.max_tokens=null",
        f"trainer.max_samples={plan.end_sample}",
    ]


def _check_seesaw(resolved: Resolved, factor: float) -> None:
    plan, config = resolved.plan, resolved.config
    if is_rl(config):
        raise UsageError(
            "--seesaw is derived for pretraining, and this is a run of reinforcement learning",
            keys=(GENERATIONS_KEY,),
            remedy=f"{RAMP_KEY}=[8,8,1000], a ramp of prompts",
        )
    if not 1 < factor < float("inf"):
        raise UsageError(
            f"--seesaw-factor {factor:g} does not let the batch grow", remedy="--seesaw-factor 2"
        )
    if len(plan.ramp.thresholds) > 1:
        key = SCHEDULE_KEY if config.model.rampup_batch_size is None else RAMP_KEY
        raise UsageError(
            "--seesaw derives the batch sizes, but this run has a schedule of its own",
            keys=(key,),
            remedy=f"{key}=null",
        )
    if plan.end_sample is None or plan.end_step is None:
        raise UsageError(
            "--seesaw needs the end of the run",
            keys=("trainer.max_samples",),
            remedy="trainer.max_samples=10M",
        )
