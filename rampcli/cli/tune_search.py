"""Searches for the micro batch sizes of `rampcli tune`, and prints what was found."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from rampcli.batch.plan import MICRO_KEY
from rampcli.cli.console import build_console, say
from rampcli.cli.jobs import jobs_table
from rampcli.cli.pictures import check_picture, writing_picture
from rampcli.config.layers import sources_named
from rampcli.errors import RampcliError
from rampcli.launch.protocol import launcher_of
from rampcli.launch.run import check_corpora
from rampcli.launch.stop_signals import exit_code_after
from rampcli.planning.run_plan import Resolved
from rampcli.planning.same_batches import in_words, micro_batch_settings
from rampcli.report.tables import build_table
from rampcli.runs.directory import RunDirectory
from rampcli.tune import job
from rampcli.tune.run import Search, trials_here
from rampcli.tune.search import SATURATED
from rampcli.tune.trial import OUT_OF_MEMORY, TIMED_OUT, Trial
from rampcli.tune.trial_files import Effort
from rampcli.tune.verdict import Verdict, scaling, verdict_of


def search(
    resolved: Resolved,
    *,
    effort: Effort,
    fresh: bool,
    exhaustive: bool,
    as_json: bool,
    plot: Path | None,
) -> int:
    """Searches for micro batch sizes, prints what was found, and returns the exit code.

    Args:
        resolved: configuration and plan of the run.
        effort: how much is measured.
        fresh: ignore what an earlier search has measured.
        exhaustive: try all sizes, from the smallest to the first that does not fit.
        as_json: print JSON and nothing else.
        plot: .svg or .png file for a picture, or None.

    Raises:
        RampcliError: nothing can be tried on this machine, or a trial failed for another reason
            than memory or time.
    """
    if plot is not None:
        check_picture(plot)
    search_with = _tune_here if launcher_of(resolved.config).runs_here else _tune_in_job
    found, code = search_with(
        resolved, effort=effort, fresh=fresh, exhaustive=exhaustive, as_json=as_json
    )
    if plot is not None and not draw(found, plot):
        say(build_console(quiet=as_json), "nothing to plot yet")
    return code


def _tune_here(
    resolved: Resolved, *, effort: Effort, fresh: bool, exhaustive: bool, as_json: bool
) -> tuple[Search, int]:
    """Searches on this machine, and prints what was found."""
    console = build_console(quiet=as_json)
    with trials_here(resolved, effort) as trials:
        search = Search.of(resolved, trials.run, effort, fresh=fresh, exhaustive=exhaustive)
        complete = search.continue_with(trials.attempt, partial(say, console))
    _print_search(search, console, as_json=as_json)
    if not complete:
        say(console, "interrupted; the same command continues and keeps what was measured")
    return search, 0 if complete else exit_code_after(trials.signals)


def draw(search: Search, path: Path) -> bool:
    """Writes a picture of what a search has found. Returns False if no size fits so far.

    Raises:
        UsageError: as `writing_picture`.
    """
    verdict = verdict_of(search.outcomes())
    if verdict is None:
        return False
    with writing_picture(path):
        from rampcli.tune.plots import plot_search

        plot_search(search.outcomes(), verdict, path, title=search.resolved.config.name)
    return True


def _tune_in_job(
    resolved: Resolved, *, effort: Effort, fresh: bool, exhaustive: bool, as_json: bool
) -> tuple[Search, int]:
    """Submits the job of a search, or prints what it has found so far."""
    run, console = RunDirectory(resolved.run_dir), build_console(quiet=as_json)
    jobs = job.active_jobs(resolved)
    with sources_named(resolved.config):
        search = Search.of(resolved, run, effort, fresh=fresh and not jobs, exhaustive=exhaustive)
        if jobs:
            search = job.search_in_queue(search)
        elif search.next() is not None:
            job.raise_failure(resolved)
            check_corpora(resolved)
            report = partial(say, console)
            jobs = job.submit(resolved, effort, fresh=fresh, exhaustive=exhaustive, report=report)
    _print_search(search, console, as_json=as_json)
    if jobs:
        say(console, jobs_table(jobs), "the same command shows what the job has found")
    return search, 0


def _print_search(search: Search, console: Console, *, as_json: bool) -> None:
    """Prints the outcomes of a search so far, and the verdict if it is complete.

    Raises:
        RampcliError: no size fits.
    """
    trials = search.outcomes()
    if as_json:
        typer.echo(json.dumps(search.to_json(), indent=1))
    elif trials:
        sequence_length = search.resolved.plan.sequence_length
        say(console, tune_table(trials, sequence_length=sequence_length))
    if search.next() is not None:
        return
    verdict = verdict_of(trials)
    if verdict is None:
        raise _nothing_fits(trials[0])
    size, resolved = verdict.recommended.micro_batch_size, search.resolved
    words = in_words(micro_batch_settings(resolved, size), resolved)
    say(console, *describe(verdict, words, all_fit=search.all_fit))


def _nothing_fits(smallest: Trial) -> RampcliError:
    has_time = smallest.verdict != TIMED_OUT
    return RampcliError(
        f"not even {MICRO_KEY}={smallest.micro_batch_size} fits: {smallest.verdict}"
        f" ({smallest.reason})",
        remedy="trainer.activation_checkpointing=full, or more devices that share the weights"
        if has_time
        else "--fresh --timeout with more seconds",
    )


def tune_table(trials: Sequence[Trial], *, sequence_length: int) -> Table:
    """Returns a table of trials, one per row.

    `+-` is half the width of the 95% interval of the median, `doubling` the throughput over that of
    half the size.
    """
    table = build_table("micro", "samples/s", "tokens/s", "+-", "s/step", "peak GiB", "doubling")
    for trial in trials:
        size = str(trial.micro_batch_size)
        if not trial.fits:
            fate = "does not fit" if trial.verdict == OUT_OF_MEMORY else trial.verdict
            table.add_row(size, fate)
            continue
        times = scaling(trial, trials)
        peak = trial.peak_memory_bytes
        table.add_row(
            size,
            f"{trial.samples_per_s:,.1f}",
            f"{trial.samples_per_s * sequence_length:,.0f}",
            "-" if trial.spread is None else f"{trial.spread:.0%}",
            f"{trial.step_s:.3f}",
            "-" if peak is None else f"{peak / 2**30:.1f}",
            "" if times is None else f"{times:.2f}x",
        )
    return table


def describe(verdict: Verdict, words: str, *, all_fit: bool) -> list[str]:
    """Returns the lines below the table: what fits, what is recommended, and why.

    Args:
        verdict: what was found.
        words: settings that give the run the recommended size.
        all_fit: the largest size that divides the batch fits.
    """
    largest, recommended = (
        verdict.largest.micro_batch_size,
        verdict.recommended.micro_batch_size,
    )
    lines = [
        f"largest that fits: {largest}{', the largest that the batch admits' if all_fit else ''};"
        f" recommended: {recommended}, which has"
        f" {verdict.share:.0%} of the best throughput"
    ]
    if recommended < largest:
        lines.append(
            f"to fill the memory: {largest}, {verdict.largest.samples_per_s:,.1f} samples/s; to"
            f" stop where throughput is within {1 - SATURATED:.0%} of the best: {recommended},"
            f" {verdict.recommended.samples_per_s:,.1f} samples/s"
        )
    timed, accumulated = (
        sorted(verdict.recommended.medians),
        verdict.recommended.accumulate_grad_batches,
    )
    if accumulated not in timed:
        lines.append(
            f"with {recommended}, a step has {accumulated} micro batches; its time follows from"
            f" steps of {' and '.join(map(str, timed))}"
        )
    return [
        *lines,
        "accumulating gradients adds no throughput: it only amortises their exchange",
        "train with:",
        f"  {words}",
    ]
