"""Searches for the micro batch sizes of `rampcli tune`, and prints what was found."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import typer
from rich.console import Console, RenderableType
from rich.table import Table

from rampcli.batch.plan import MICRO_KEY
from rampcli.batch.quantities import listed
from rampcli.cli.console import build_console, say
from rampcli.cli.jobs import jobs_table
from rampcli.cli.pictures import check_picture, writing_picture
from rampcli.config.layers import sources_named
from rampcli.errors import RampcliError
from rampcli.launch.protocol import Job, launcher_of
from rampcli.launch.start_checks import check_corpora, check_launcher
from rampcli.machine.lifeline import exit_code_after
from rampcli.planning.run_plan import Resolved
from rampcli.planning.same_batches import in_words, micro_batch_settings
from rampcli.report.plan_notes import ESTIMATED
from rampcli.report.tables import build_table
from rampcli.tune import job
from rampcli.tune.run import Search, folder_of, trials_here
from rampcli.tune.search import SATURATED, Verdict, verdict_of
from rampcli.tune.trial import OUT_OF_MEMORY, TIMED_OUT, Trial
from rampcli.tune.trial_files import Effort


def search(
    resolved: Resolved,
    *,
    effort: Effort,
    fresh: bool,
    exhaustive: bool,
    as_json: bool,
    plot: Path | None,
    phase: str | None = None,
) -> int:
    """Searches as the options of `rampcli tune` say, prints the outcomes, returns the exit code.

    Args:
        resolved: the run, or one of its phases as `run_of_phase` returns it.
        phase: name of that phase.

    Raises:
        RampcliError: nothing can be tried on this machine, or a trial failed for another reason
            than memory or time.
    """
    if plot is not None:
        check_picture(plot)
    console, notes, code = build_console(quiet=as_json), list[RenderableType](), 0
    report = partial(say, console)
    search_of_run = partial(Search, resolved, effort, exhaustive=exhaustive)
    launcher = launcher_of(resolved.config)
    if launcher.runs_here:
        with trials_here(resolved, effort) as trials:
            found = search_of_run(fresh=fresh)
            complete = found.continue_with(trials.attempt, report)
        if not complete:
            notes.append("interrupted; the same command continues and keeps what was measured")
            code = exit_code_after(trials.signals)
    else:
        active = launcher.active_jobs(folder_of(resolved))
        with sources_named(resolved.config):
            found = search_of_run(fresh=fresh and not active)
            found, active = _search_in_job(found, active, report)
        if active:
            notes += [jobs_table(active), "the same command shows what the job has found"]
    _print_search(found, console, phase=phase, as_json=as_json)
    say(console, *notes)
    if plot is not None:
        _draw(found, plot, console)
    return code


def _search_in_job(
    search: Search, active: list[Job], report: Callable[[str], None]
) -> tuple[Search, list[Job]]:
    """Submits the job of a search, unless a job is active or the answer is known.

    Returns the search of the job, and the active jobs.
    """
    if active:
        return job.search_in_queue(search), active
    if search.next() is None:
        return search, []
    job.raise_failure(search.resolved)
    check_launcher(search.resolved)
    check_corpora(search.resolved)
    return search, job.submit_search(search, report)


def _draw(search: Search, path: Path, console: Console) -> None:
    """Draws the outcomes of a search, if a size fits."""
    verdict = verdict_of(search.outcomes())
    if verdict is None:
        say(console, "nothing to plot yet")
        return
    with writing_picture(path):
        from rampcli.tune.plots import plot_search

        plot_search(search.outcomes(), verdict, path, title=search.resolved.config.name)


def _print_search(search: Search, console: Console, *, phase: str | None, as_json: bool) -> None:
    """Prints the outcomes of a search so far, and the verdict if it is complete."""
    trials = search.outcomes()
    if as_json:
        typer.echo(json.dumps(search.to_json(), indent=1))
    elif trials:
        table = tune_table(trials, sequence_length=search.resolved.plan.sequence_length)
        say(console, table, *extrapolation_notes(trials))
    if search.next() is not None:
        return
    verdict = verdict_of(trials)
    if verdict is None:
        raise _nothing_fits(trials[0])

    def words_of(size: int) -> str:
        (only,) = search.resolved.phases
        return str(in_words(micro_batch_settings(only, size), only.config, phase=phase))

    say(console, *found_lines(verdict, words_of, admitted=search.candidates[-1].micro_batch_size))


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

    `+-` is half the width of the 95% interval of the median. `doubling` is the throughput, divided
    by the throughput of half the size. `ESTIMATED` marks times of steps that were not measured.
    """
    table = build_table("micro", "samples/s", "tokens/s", "+-", "s/step", "peak GiB", "doubling")
    of_half = {2 * trial.micro_batch_size: trial.samples_per_s for trial in trials if trial.fits}
    for trial in trials:
        size, half = str(trial.micro_batch_size), of_half.get(trial.micro_batch_size)
        if not trial.fits:
            fate = "does not fit" if trial.verdict == OUT_OF_MEMORY else trial.verdict
            table.add_row(size, fate)
            continue
        peak = trial.peak_memory_bytes
        table.add_row(
            size,
            f"{trial.samples_per_s:,.1f}",
            f"{trial.samples_per_s * sequence_length:,.0f}",
            "-" if trial.spread is None else f"{trial.spread:.0%}",
            f"{ESTIMATED if trial.is_extrapolated else ''}{trial.step_s:.3f}",
            "-" if peak is None else f"{peak / 2**30:.1f}",
            "" if half is None else f"{trial.samples_per_s / half:.2f}x",
        )
    return table


def extrapolation_notes(trials: Sequence[Trial]) -> list[str]:
    """Returns a note if steps of the run were not measured, because they take long."""
    found = [trial for trial in trials if trial.is_extrapolated]
    if not found:
        return []
    timed = " and ".join(map(str, sorted(found[0].medians)))
    steps = [f"{trial.accumulate_grad_batches} with {trial.micro_batch_size}" for trial in found]
    return [
        f"s/step with {ESTIMATED} was not measured: it follows from the medians of steps of"
        f" {timed} micro batches; a step of the run has {listed(steps)}"
    ]


def found_lines(verdict: Verdict, words_of: Callable[[int], str], *, admitted: int) -> list[str]:
    """Returns the lines below the table: what fits, what is recommended, and why.

    Args:
        words_of: returns the settings that give the run a size.
        admitted: the largest size that divides the batch.
    """
    largest, recommended = verdict.largest.micro_batch_size, verdict.recommended.micro_batch_size
    limit = ", the largest that the batch admits" if largest == admitted else ""
    lines = [
        f"largest that fits: {largest}{limit}; recommended: {recommended}, which has"
        f" {verdict.share:.0%} of the best throughput"
    ]
    if recommended < largest:
        lines.append(
            f"to fill the memory: {largest}, {verdict.largest.samples_per_s:,.1f} samples/s; to"
            f" stop where throughput is within {1 - SATURATED:.0%} of the best: {recommended},"
            f" {verdict.recommended.samples_per_s:,.1f} samples/s"
        )
    if verdict.others:
        sizes = listed(list(map(str, sorted([recommended, *verdict.others]))))
        lines.append(
            f"by the intervals (+-), {sizes} may each be the smallest size within"
            f" {1 - SATURATED:.0%} of the best: more --steps or an idle machine tells them apart"
        )
    if verdict.slower:
        slow = verdict.slower[0]
        lines.append(
            f"{slow} is slower than {slow // 2}: `rampcli tune --diagnose` with {words_of(slow)}"
            " measures where its time goes"
        )
    return [
        *lines,
        "accumulating gradients adds no throughput: it only amortises their exchange",
        "train with:",
        f"  {words_of(recommended)}",
    ]
