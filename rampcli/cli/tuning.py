"""`rampcli tune`: searches for micro batch sizes, and prints what was found."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import typer
from rich.console import Console
from rich.table import Table

from rampcli.batch.plan import MICRO_KEY
from rampcli.cli.console import build_console, print_table, say
from rampcli.config.layers import sources_named
from rampcli.config.run_plan import Resolved
from rampcli.errors import EXIT_CTRL_C, RampcliError
from rampcli.launch.run import check_corpora
from rampcli.launch.run_lock import lock_run
from rampcli.launch.stop_signals import catch_stop_signals
from rampcli.report.tables import build_table
from rampcli.run_directory import RunDirectory
from rampcli.tune.run import Search, local_ranks
from rampcli.tune.search import SATURATED
from rampcli.tune.trial import OUT_OF_MEMORY, TIMED_OUT, Effort, Trial, Trials
from rampcli.tune.verdict import Verdict, scaling, verdict_of


def tune(
    resolved: Resolved, *, effort: Effort, fresh: bool, exhaustive: bool, as_json: bool
) -> int:
    """Searches for micro batch sizes, prints what was found, and returns the exit code.

    Args:
        resolved: configuration and plan of the run.
        effort: how much is measured.
        fresh: ignore what an earlier search has measured.
        exhaustive: try all sizes, from the smallest to the first that does not fit.
        as_json: print JSON and nothing else.

    Raises:
        RampcliError: nothing can be tried on this machine, or a trial failed for another reason
            than memory or time.
    """
    run, console = RunDirectory(resolved.run_dir), build_console()
    with ExitStack() as held:
        held.enter_context(sources_named(resolved.config))
        check_corpora(resolved.config)
        held.enter_context(lock_run(run))
        start = held.enter_context(local_ranks(resolved))
        signals = held.enter_context(catch_stop_signals())
        search = Search.of(
            Trials(resolved=resolved, run=run, start=start, signals=signals, effort=effort),
            fresh=fresh,
            exhaustive=exhaustive,
            on_trial=partial(_print_progress, None if as_json else console),
        )
        complete = search.run()
    if as_json:
        typer.echo(json.dumps(search.to_json(), indent=1))
    else:
        _print_outcomes(search, console, complete=complete)
    return 0 if complete else EXIT_CTRL_C


def _print_progress(console: Console | None, size: int, trial: Trial | None) -> None:
    if console is None:
        return
    if trial is None:
        say(console, f"trying {MICRO_KEY}={size}")
    elif trial.reason is not None:
        say(console, f"  {trial.verdict}: {trial.reason}")


def _print_outcomes(search: Search, console: Console, *, complete: bool) -> None:
    trials = search.outcomes()
    if trials:
        print_table(console, tune_table(trials))
    if not complete:
        say(console, "interrupted; the same command continues with what was measured")
        return
    verdict = verdict_of(trials)
    if verdict is None:
        smallest = trials[0]
        raise RampcliError(
            f"not even {MICRO_KEY}={smallest.micro_batch_size} fits: {smallest.verdict}"
            f" ({smallest.reason})",
            keys=(MICRO_KEY,),
            remedy="--timeout with more seconds"
            if smallest.verdict == TIMED_OUT
            else "trainer.activation_checkpointing=full, or more devices that share the weights",
        )
    for line in describe(verdict, all_fit=search.all_fit):
        say(console, line)


def tune_table(trials: Sequence[Trial]) -> Table:
    """Returns a table of trials, one per row.

    `+-` is half the width of the 95% interval of the median, `doubling` the throughput over that of
    half the size.
    """
    table = build_table("micro", "samples/s", "+-", "s/step", "peak GiB", "doubling")
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
            f"{trial.spread:.0%}",
            f"{trial.step_s:.3f}",
            "-" if peak is None else f"{peak / 2**30:.1f}",
            "" if times is None else f"{times:.2f}x",
        )
    return table


def describe(verdict: Verdict, *, all_fit: bool) -> list[str]:
    """Returns the lines below the table: what fits, what is recommended, and why.

    Args:
        verdict: what was found.
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
            f"a larger one would fill the memory, but add less than {1 - SATURATED:.0%} throughput"
        )
    return [
        *lines,
        "accumulating gradients adds no throughput: it only amortises their exchange",
        "train with:",
        f"  {MICRO_KEY}={recommended}",
    ]
