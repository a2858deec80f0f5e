"""`rampcli cbs`: finds the critical batch of a run by branches with larger batches."""

import gc
import json
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rampcli.cli.options import AsJson, Run
from rampcli.errors import EXIT_CTRL_C, EXIT_INTERRUPTED, UsageError

if TYPE_CHECKING:
    from rampcli.cbs.branches import Branches

MOST_MULTIPLE, MOST_EXPONENT = 1024, 2.0


def cbs(
    run: Run,
    multiples: Annotated[str | None, typer.Option(metavar="K,K,...")] = None,
    at_sample: Annotated[int | None, typer.Option("--at", metavar="SAMPLES", min=1)] = None,
    tokens: Annotated[int | None, typer.Option(metavar="N", min=1)] = None,
    exponent: Annotated[float | None, typer.Option(metavar="E", min=0.0, max=MOST_EXPONENT)] = None,
    decays: Annotated[bool | None, typer.Option("--decay/--constant", show_default=False)] = None,
    at_once: Annotated[int, typer.Option("--at-once", metavar="N", min=1)] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
    as_json: AsJson = False,
) -> None:
    """Find the critical batch of a run by trying larger ones.

    It is the largest batch that learns as much per sample. Branches of the run are trained in
    RUN/cbs. Run the same command again to resume them.

    Args:
        multiples: Batches of the branches, divided by the run's. 1 is one of them. Default:
            1,2,4,8.
        at_sample: Branch from the last checkpoint up to these consumed samples, not the newest.
        tokens: Length of each branch in tokens, rounded up to whole steps. Default: 2% of the run,
            or 200 steps of its batch if that is more.
        exponent: The learning rate grows as the batch to this power. Default: 0.5.
        decays: Let the learning rate of a branch fall towards 0, or keep it constant, which favours
            large batches. Default: --decay.
        at_once: Train up to N branches at a time on this machine, each on GPUs of its own.
        dry_run: Check and print the branches without starting one.
    """
    from rampcli.cbs.branches import compose_branches
    from rampcli.cli.console import build_console, say
    from rampcli.cli.sweep_runs import check_at_once, run_all
    from rampcli.runs.directory import COMPLETE, find_run

    gc.enable()
    chosen = _multiples(multiples)
    branches = compose_branches(
        find_run(run),
        at_sample=at_sample,
        multiples=chosen,
        tokens=tokens,
        exponent=exponent,
        decays=decays,
    )
    runs = [*branches.runs.values()]
    check_at_once(runs, at_once, starts=not dry_run)
    console = build_console(quiet=as_json)
    say(console, *_intent(branches))
    if dry_run:
        _print_plan(branches, as_json=as_json)
        return
    branches.link()
    branches.folder.write_json(branches.folder.result, branches.result())
    command = ["rampcli", "cbs", run, "--at", str(branches.point.consumed_samples)]
    if at_once > 1:
        command += ["--at-once", str(at_once)]
        say(
            console,
            f"follow them with:\n  {shlex.join(['rampcli', 'status', str(branches.folder.path)])}",
        )
    again, what = shlex.join(command), "the series of branches"
    code = run_all(runs, command, console, what=what, again=again, at_once=at_once)
    result = branches.result()
    branches.folder.write_json(branches.folder.result, result)
    if as_json or code not in (EXIT_CTRL_C, EXIT_INTERRUPTED):
        _print_result(branches, result, as_json=as_json)
    if code == 0 and any(one["state"] != COMPLETE for one in result["branches"]):
        say(console, f"the same command prints the results:\n  {again}")
    raise typer.Exit(code)


def _multiples(text: str | None) -> list[int] | None:
    """Returns the multiples in a word.

    Raises:
        UsageError: they are not different whole numbers with 1 among them.
    """
    if text is None:
        return None
    words = text.split(",")
    known = [int(word) for word in words if word.isascii() and word.isdecimal() and len(word) < 6]
    is_fine = len({*known}) == len(words) and 1 in known and len(known) > 1
    if not is_fine or not 1 <= min(known) <= max(known) <= MOST_MULTIPLE:
        raise UsageError(
            f"--multiples {text}: these are different whole numbers from 1 to {MOST_MULTIPLE}, and"
            " one of them is 1, with which the others are compared",
            remedy="--multiples 1,2,4,8",
        )
    return known


def _intent(branches: "Branches") -> list[str]:
    """Returns lines that say what the branches are."""
    point, terms = branches.point, branches.terms
    phase, samples = point.phase.plan, terms.samples
    place = "" if phase.name is None else f", in phase {phase.name}"
    return [
        f"branches from step {branches.step:,}, after {point.consumed_samples:,} samples{place}:"
        f" batch {point.global_batch_size:,}, learning rate {point.lr:.2e}",
        f"each trains on the next {samples:,} samples ({samples * phase.sequence_length:,} tokens)"
        f" with a learning rate of {point.lr:.2e} x multiple^{terms.exponent:g}"
        f"{', which falls towards 0' if terms.decays else ', which stays constant'}; beta2 and"
        " weight decay stay as they are there",
    ]


def _print_plan(branches: "Branches", *, as_json: bool) -> None:
    from rampcli.cbs.results import branch_lines, branch_table
    from rampcli.cli.console import build_console, say
    from rampcli.runs.facts import read_facts

    result = branches.result()
    speed = read_facts(branches.run).tokens_per_s
    tokens = branches.terms.samples * result["sequence_length"]
    hours = None if not speed else tokens / speed / 3600
    left = sum(not run.is_complete for run in branches.runs.values())
    planned: dict[str, Any] = {
        "hours_per_branch": hours,
        "hours_left": None if hours is None else hours * left,
    }
    if as_json:
        typer.echo(json.dumps({**result, **planned}, indent=1))
        return
    cost = (
        "the speed of the run is not known, and so are the hours"
        if hours is None
        else f"at the run's newest speed, a branch trains for {hours:.3f} hours; left to train:"
        f" {left} of {len(branches.runs)} branches, {hours * left:.3f} hours in turn. Starts and"
        " validations come on top; a larger batch may be faster"
    )
    is_known = result["critical_batch_size"] is not None
    lines = branch_lines(result)[0 if is_known else 2 :]
    say(build_console(), branch_table(result), *([cost] if left else []), *lines)


def _print_result(branches: "Branches", result: dict[str, Any], *, as_json: bool) -> None:
    from rampcli.cbs.results import branch_lines, branch_table
    from rampcli.cli.console import build_console, say

    if as_json:
        typer.echo(json.dumps(result, indent=1))
        return
    console = build_console()
    console.print()
    say(console, branch_table(result), *branch_lines(result), f"folder: {branches.folder.path}")
