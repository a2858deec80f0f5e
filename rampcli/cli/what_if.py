"""`rampcli plan --what-if`: compares plans for several values of a setting."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import typer

from rampcli.batch.quantities import counted, listed
from rampcli.batch.throughput import check_curve
from rampcli.cli.base import Base
from rampcli.cli.composing import (
    check_runs_differ,
    compose_beside_recipe,
    keys_of_files,
    with_measured,
)
from rampcli.cli.console import build_console, say
from rampcli.config.groups import group_names
from rampcli.config.layers import placed, sources_named
from rampcli.config.reading import MOST_VALUES
from rampcli.config.sweeps import key_as_typed, read_values
from rampcli.errors import ErrorReport, UsageError, UsageErrors, typeable
from rampcli.planning.retuning import RETUNE
from rampcli.planning.run_plan import Resolved
from rampcli.report.couplings import compared_stages, differing_couplings
from rampcli.report.plan_json import plan_figures, plan_json
from rampcli.report.plan_notes import left_out_notes, throughput_notes
from rampcli.report.plan_tables import comparison_table
from rampcli.words import unwrapped


def compare_plans(
    base: Base,
    words: Sequence[str],
    what_if: Sequence[str],
    *,
    measured: Sequence[Path],
    retunes: bool,
    as_json: bool,
) -> bool:
    """Prints a plan for each value of a setting, or each combination of several, side by side.

    Args:
        base: what the words are laid over.
        words: overrides of the command line.
        what_if: `KEY=VALUE,VALUE,...`, each with another key.
        measured: directories to take the throughput from.
        retunes: whether settings that are tied to the batch follow it.

    Returns:
        Whether at least one plan fits.

    Raises:
        UsageError: `what_if` does not have this form, every plan has the same error, or the plan
            does not depend on a setting.
    """
    keys = keys_of_files(base, [*map(unwrapped, (*words, *what_if))])
    values = _values_of(what_if, base.folders(words), keys)
    others = [word for word in words if unwrapped(word).lstrip("+").partition("=")[0] not in values]

    def plan_with(combination: Sequence[str]) -> Resolved | UsageError:
        try:
            resolved = compose_beside_recipe(base, [*others, *combination], retunes=retunes)
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
    variants = [(" ".join(words), one) for words, one in zip(combinations, found, strict=True)]
    with placed("--what-if"):
        check_runs_differ(base, words, [*_fitting(values, combinations, found)])
    sweep = " ".join(["rampcli sweep", str(base), *map(typeable, others)])
    _check_matters(values, combinations, found, sweep)
    _print_comparison(variants, keys=[*values], as_json=as_json)
    return any(isinstance(one, Resolved) for one in found)


def _values_of(
    what_if: Sequence[str], among: Sequence[Path], also: Collection[str]
) -> dict[str, list[str]]:
    """Returns the words `KEY=VALUE` for each key of `--what-if`."""
    values: dict[str, list[str]] = {}
    groups = group_names(among)
    for word in what_if:
        try:
            key, texts = read_values(word, groups, also)
            if key in values:
                raise UsageError(f"{key} is given twice", keys=(key,), remedy=f"{key}=A,B,C")
        except UsageError as error:
            error.set_by = ("--what-if",)
            if "=" not in word:
                error.remedies = ("--what-if trainer.num_nodes=8,16,32",)
            raise
        typed_key = key_as_typed(unwrapped(word), key, groups)
        values[key] = [f"{typed_key}={text}" for text in texts]
    return values


def _fitting(
    keys: Iterable[str],
    combinations: Sequence[Sequence[str]],
    found: Sequence[Resolved | UsageError],
) -> Iterator[tuple[dict[str, str], Resolved]]:
    """Yields the values of each plan that fits, by key, and the plan."""
    for words, one in zip(combinations, found, strict=True):
        if isinstance(one, Resolved):
            texts = (word.partition("=")[2] for word in words)
            yield dict(zip(keys, texts, strict=True)), one


def _check_matters(
    values: Mapping[str, Sequence[str]],
    combinations: Sequence[Sequence[str]],
    found: Sequence[Resolved | UsageError],
    sweep: str,
) -> None:
    """Checks that each setting changes the plan, so that no two rows of the table are equal."""
    if any(isinstance(one, UsageError) for one in found):
        return
    plans = [_figures(one) for one in found if isinstance(one, Resolved)]
    for place, (key, words) in enumerate(values.items()):
        alike: dict[tuple[str, ...], list[Any]] = {}
        for combination, plan in zip(combinations, plans, strict=True):
            rest = (*combination[:place], *combination[place + 1 :])
            alike.setdefault(rest, []).append(plan)
        if len(words) > 1 and all(one == group[0] for group in alike.values() for one in group):
            texts = ",".join(word.partition("=")[2] for word in words)
            raise UsageError(
                f"--what-if {key}={texts}: batch, memory and time are the same for each value",
                keys=(key,),
                set_by=("--what-if",),
                remedy=f"{sweep} {typeable(f'{key}={texts}')}, which trains with each value",
            )


def _figures(resolved: Resolved) -> tuple[Any, ...]:
    """Returns what plans are compared by. Values that follow the batch are those of the stages."""
    figures = plan_figures(resolved)
    stages = zip(figures["stages"], compared_stages(resolved), strict=True)
    return resolved.plan, figures | {"stages": [{**row, **compared} for row, compared in stages]}


def _same_notes(plans: Mapping[str, Resolved]) -> list[str]:
    """Returns a note for each group of plans with equal figures."""
    groups: list[tuple[Any, list[str]]] = []
    for word, resolved in plans.items():
        figures = _figures(resolved)
        alike = next((words for other, words in groups if other == figures), None)
        if alike is None:
            groups.append((figures, [word]))
        else:
            alike.append(word)
    return [
        f"batch, memory and time are the same for {listed(words)}"
        for _, words in groups
        if len(words) > 1
    ]


def _check_curves(variants: Sequence[Resolved]) -> None:
    """Checks that plans with different micro batch sizes have a throughput for each."""
    sizes = [stage.micro_batch_size for variant in variants for stage in variant.plan.stages]
    for variant in variants:
        if variant.config.rampup.efficiency is not None:
            with sources_named(variant.config):
                check_curve(variant.config.rampup.efficiency, sizes)


def _print_comparison(
    variants: Sequence[tuple[str, Resolved | UsageError]], *, keys: Sequence[str], as_json: bool
) -> None:
    if as_json:
        rows = [
            {"words": word, "plan": None, "error": found.message}
            if isinstance(found, UsageError)
            else {"words": word, "plan": plan_json(found), "error": None}
            for word, found in variants
        ]
        typer.echo(json.dumps(rows, indent=1))
        return
    misfits = (
        f"\n{word} does not fit: {found.message}"
        for word, found in variants
        if isinstance(found, UsageError)
    )
    fitting = {word: found for word, found in variants if isinstance(found, Resolved)}
    plans = [*fitting.values()]
    same = _same_notes(fitting)
    notes = (
        f"\nnote: {note}"
        for note in (
            *throughput_notes(plans),
            *_batch_notes(plans),
            *left_out_notes(plans, asked=keys),
            *same,
        )
    )
    table = comparison_table(variants, more=differing_couplings(fitting))
    say(build_console(), table, *misfits, *notes)


def _batch_notes(plans: Sequence[Resolved]) -> list[str]:
    """Returns a note if the batch of some plans is not the recipe's."""
    differing = sum(bool(plan.retunings) for plan in plans)
    if not differing:
        return []
    adapted = any(
        one.state == "applied"
        for plan in plans
        for retuning in plan.retunings
        for one in retuning.settings
    )
    has_adapted = f", and {RETUNE} has adapted what is tied to it" if adapted else ""
    return [
        f"the batch of {counted(differing, 'plan')} is not the recipe's{has_adapted}; rampcli plan"
        " without --what-if shows the settings that are tied to it"
    ]


def _raise_shared_errors(found: Sequence[Resolved | UsageError]) -> None:
    """Raises the errors that occur with every value."""
    each = [
        {str(one): one for one in (error.errors if isinstance(error, UsageErrors) else [error])}
        for error in found
        if isinstance(error, UsageError)
    ]
    if len(each) == len(found):
        report = ErrorReport()
        report.errors = [
            error for text, error in each[0].items() if all(text in other for other in each)
        ]
        report.close()
