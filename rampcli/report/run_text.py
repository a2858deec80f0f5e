"""Tables and lines of `rampcli report`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from operator import methodcaller

from rich.table import Table
from rich.text import Text

from rampcli.batch.quantities import counted, listed, shorten
from rampcli.errors import visible
from rampcli.report.run_report import RunReport
from rampcli.report.tables import (
    VALIDATION_TITLES,
    build_table,
    count,
    duration,
    ends,
    figure,
    in_phase,
    origin_text,
    share,
    size_text,
)
from rampcli.runs.event_kinds import LOSSES_OF_AVERAGES
from rampcli.runs.metrics import LAST_STEPS
from rampcli.runs.recorded_phases import phase_of
from rampcli.runs.stages import TrainedStage
from rampcli.runs.trained_phases import TrainedPhase

OVER: dict[str | None, str] = {
    "last": f"the last {LAST_STEPS} that measure it",
    "mean": "all steps",
    "max": "the largest",
    "rate": "the time of all steps",
}
"""What the figure of a metric is taken over, by its way of summarising."""
CLOCK = "%d %b %Y %H:%M"
MOST_MESSAGES = 5
"""Warnings, and changed settings, to print; a run may have very many."""


def summary_lines(report: RunReport) -> Iterator[str]:
    """Yields where a run stands, when it ran, and what interrupted it."""
    facts = report.facts
    yield (
        f"{report.name}: {report.status} after {facts.consumed_samples:,} {report.unit},"
        f" {counted(facts.step, 'step')}{in_phase(facts.phase)}; {report.path}"
    )
    if facts.events.origin is not None:
        earlier = [phase.name for phase in report.phases if phase.is_inherited]
        begun = f"; phases trained before that, not in this run: {listed(earlier)}"
        yield f"continues {origin_text(facts.events.origin)}{begun if earlier else ''}"
    if report.size is None:
        yield (
            "model: its size is unknown, as this version refuses its settings:"
            f" {report.settings_problem}"
        )
    else:
        so_far = "" if report.tokens is None else " so far"
        yield f"model: {size_text(report.size, tokens=report.tokens)}{so_far}"
    if facts.events.started is not None and report.ended_at is not None:
        name = facts.events.newest.get("start", {}).get("device_name")
        device = "" if name is None else f", on {name}"
        yield f"{_clock(facts.events.started)} to {_clock(report.ended_at)}{device}"
    if facts.error is not None:
        yield f"error: {facts.error['message']}"
        if facts.error["remedy"] is not None:
            yield f"try:   {facts.error['remedy']}"


def stage_table(report: RunReport) -> Table:
    """Returns the stages, each as planned and as trained.

    `causal` is the MFU that counts causal attention only. The loss and the rewards are means over
    the last steps of a stage.
    """
    is_rl = any(stage.pairs is not None for stage in report.stages)
    columns: dict[str, Callable[[TrainedStage], str]] = {
        "phase": lambda stage: str(phase_of(report.facts.plan, stage.stage)),
        "stage": lambda stage: str(stage.stage),
        "batch": lambda stage: str(stage.global_batch_size),
        "pairs": lambda stage: count(stage.pairs),
        "nodes": lambda stage: _of(stage.nodes, stage.planned_nodes),
        "processes": lambda stage: ", ".join(map(str, stage.world_sizes)) or "-",
        report.unit: lambda stage: _trained_of(stage, stage.samples, stage.planned_samples),
        "steps": lambda stage: _trained_of(stage, stage.steps, stage.planned_steps),
        "loss": lambda stage: figure(stage.loss),
        "reward": lambda stage: figure(stage.reward),
        "solved": lambda stage: share(stage.solved),
        "tokens/s": lambda stage: count(stage.tokens_per_s),
        "MFU": lambda stage: share(stage.mfu),
        "causal": lambda stage: share(stage.mfu_causal),
    }
    for name in ("loss",) if is_rl else ("pairs", "reward", "solved"):
        del columns[name]
    if report.facts.phase is None:
        del columns["phase"]
    if all(stage.mfu is None for stage in report.stages):
        del columns["MFU"], columns["causal"]
    table = build_table(*columns, left=("phase",))
    for stage in report.stages:
        table.add_row(*(cell(stage) for cell in columns.values()))
    return table


def time_table(report: RunReport) -> Table:
    """Returns where the time of a run went."""
    table = build_table("where the time went", "time", "share", left=("where the time went",))
    for name, seconds in report.parts.items():
        of_running = report.share_of(name)
        table.add_row(name, duration(seconds), "" if of_running is None else share(of_running))
    table.add_row("total", duration(report.time.elapsed_s), "", style="bold")
    return table


def measured_table(report: RunReport) -> Table:
    """Returns the figures of metrics that the table of stages does not show."""
    title = "metric"
    table = build_table(title, "unit", "value", "over", left=(title, "unit", "over"))
    for metric, value in report.measured:
        cells = (metric.name, metric.unit, _short(value), OVER[metric.summary])
        table.add_row(*(Text(visible(cell)) for cell in cells))
    return table


def closing_lines(report: RunReport) -> Iterator[str]:
    """Yields the noise scale, goodput, validation losses, costs of stops, and messages."""
    length = report.noise_length
    if report.noise is not None and length is not None:
        yield (
            f"noise scale of the gradient: {report.noise.text(sequence_length=length)}; the batch"
            f" has {counted(report.facts.last['global_batch_size'], 'sequence')}"
        )
    if report.time.goodput is not None:
        yield (
            f"goodput {share(report.time.goodput)}: the share of the running time that went into"
            " steps that count"
        )
    for corpus, losses in report.validations.items():
        name = f" on {corpus}" if corpus else ""
        averages = {
            of_average: averaged
            for column, of_average in LOSSES_OF_AVERAGES.items()
            if (averaged := report.validated(column).get(corpus))
        }
        shown = "".join(f"; {title} {_outermost(found)}" for title, found in averages.items())
        yield f"validation loss{name} {_outermost(losses)}{shown}"
        ends = {
            phase.name: loss
            for phase in report.phases
            if (loss := phase.validation_losses["loss"].get(corpus)) is not None
        }
        if len(ends) > 1:
            of_phases = (f"{phase} {figure(loss)}" for phase, loss in ends.items())
            yield f"validation loss{name} at the end of each phase: {', '.join(of_phases)}"
    events = report.facts.events
    boundary_s = events.median_s("boundary", "lost_s")
    save_s, stall_s = (events.median_s("checkpoint", name) for name in ("save_s", "stall_s"))
    if boundary_s is not None:
        yield f"{_number(events.counts['boundary'], 'stage boundary')}, median {boundary_s:.1f} s"
    if save_s is not None and stall_s is not None:
        yield (
            f"{_number(events.counts['checkpoint'], 'checkpoint')}, median {save_s:.2f} s, for"
            f" {stall_s:.2f} s of which training waited"
        )
    if events.lost_steps:
        yield f"{_number(events.lost_steps, 'step')} trained again after interruptions"
    if events.counts.get("skip"):
        yield f"{_number(events.counts['skip'], 'step')} with a skipped update"
    hidden = len(events.changes) - MOST_MESSAGES
    if hidden > 0:
        yield f"{_number(hidden, 'earlier changed setting')} in events.jsonl"
    for change in events.changes[-MOST_MESSAGES:]:
        yield (
            f"{change['setting']} changed from {change['old']} to {change['new']} after step"
            f" {change['step']:,}"
        )
    hidden = len(events.warnings) - MOST_MESSAGES
    if hidden > 0:
        yield f"{_number(hidden, 'earlier warning')} in events.jsonl"
    yield from (f"warning: {reason}" for reason in events.warnings[-MOST_MESSAGES:])


def _outermost(losses: Sequence[tuple[int, float]]) -> str:
    """Returns the first and the last loss, or the only one, as text."""
    return " -> ".join(f"{loss:.3f}" for _, loss in dict.fromkeys((losses[0], losses[-1])))


def comparison_table(reports: Sequence[RunReport]) -> Table:
    """Returns several runs side by side, one per column."""
    rows: dict[str, Callable[[RunReport], str]] = {
        "status": lambda one: one.status,
        "continues": lambda one: origin_text(one.facts.events.origin),
        "parameters": lambda one: "-" if one.size is None else shorten(one.size.parameters),
        "tokens per parameter": _tokens_per_parameter,
        "consumed": lambda one: f"{one.facts.consumed_samples:,} {one.unit}",
        "steps": lambda one: f"{one.facts.step:,}",
        "batch": lambda one: ends([stage.global_batch_size for stage in _trained(one)]),
        "processes": lambda one: ends([max(stage.world_sizes) for stage in _trained(one)]),
        "loss": lambda one: figure(next((stage.loss for stage in _trained(one)[::-1]), None)),
        "reward": lambda one: figure(next((stage.reward for stage in _trained(one)[::-1]), None)),
        **{
            f"validation loss {corpus}".strip(): _last_loss(corpus, lambda one: one.validations)
            for corpus in dict.fromkeys(name for one in reports for name in one.validations)
        },
        **{
            f"{of_average} {corpus}".strip(): _last_loss(corpus, methodcaller("validated", column))
            for column, of_average in LOSSES_OF_AVERAGES.items()
            for corpus in dict.fromkeys(name for one in reports for name in one.validated(column))
        },
        "noise scale": _noise_scale,
        **{
            name: partial(_measured, name)
            for name in dict.fromkeys(metric.name for one in reports for metric, _ in one.measured)
        },
        "tokens/s": lambda one: ends([round(stage.tokens_per_s or 0) for stage in _trained(one)]),
        "MFU": lambda one: share(next((stage.mfu for stage in _trained(one)[::-1]), None)),
        "time": lambda one: duration(one.time.running_s),
        "goodput": lambda one: share(one.time.goodput),
    }
    table = build_table("", *(Text(visible(one.name)) for one in reports))
    for name, cell in rows.items():
        cells = [cell(one) for one in reports]
        if set(cells) != {"-"}:
            table.add_row(Text(visible(name)), *(Text(visible(text)) for text in cells))
    return table


def phases_table(reports: Sequence[RunReport]) -> Table:
    """Returns the phases of several runs, one per row. Those of one name follow each other.

    `tokens at end` counts from the start of the run. The losses are those at the end of the phase:
    the mean over its last steps, and the validation after them.
    """
    phases = [(one.name, phase) for one in reports for phase in one.phases]
    columns: dict[str, Callable[[TrainedPhase], str]] = {
        "length": lambda phase: count(phase.sequence_length),
        "batch": lambda phase: ends(phase.global_batch_sizes),
        "steps": lambda phase: _trained_of(phase, phase.steps, phase.planned_steps),
        "tokens at end": lambda phase: "-" if phase.end_token is None else shorten(phase.end_token),
        "loss": lambda phase: figure(phase.loss),
    }
    for column in ("loss", *LOSSES_OF_AVERAGES):
        found = dict.fromkeys(one for _, phase in phases for one in phase.validation_losses[column])
        for corpus in found:
            title = f"{VALIDATION_TITLES[column]} {corpus}".strip()
            columns[title] = _validation_loss(column, corpus)
    table = build_table("phase", "run", *map(visible, columns), left=("phase", "run"))
    for name in dict.fromkeys(phase.name for _, phase in phases):
        for run, phase in phases:
            if phase.name == name:
                cells = (name, run, *(cell(phase) for cell in columns.values()))
                table.add_row(*(Text(visible(text)) for text in cells))
    return table


def _validation_loss(column: str, corpus: str) -> Callable[[TrainedPhase], str]:
    """Returns what shows a loss on a corpus at the end of a phase."""
    return lambda phase: figure(phase.validation_losses[column].get(corpus))


def _tokens_per_parameter(report: RunReport) -> str:
    if report.size is None or report.tokens is None:
        return "-"
    return shorten(report.tokens / report.size.parameters)


def _measured(name: str, report: RunReport) -> str:
    return _short(next((value for one, value in report.measured if one.name == name), None))


def _short(value: float | None) -> str:
    """Returns a number of any size as text, or "-" if it is unknown."""
    return "-" if value is None else f"{value:.4g}"


def _noise_scale(report: RunReport) -> str:
    return "-" if report.noise is None else report.noise.short_text()


def _last_loss(
    corpus: str, losses_of: Callable[[RunReport], Mapping[str, Sequence[tuple[int, float]]]]
) -> Callable[[RunReport], str]:
    """Returns what shows the last loss of a run on a corpus, of those that `losses_of` returns."""
    return lambda one: figure(losses_of(one)[corpus][-1][1] if corpus in losses_of(one) else None)


def _trained(report: RunReport) -> list[TrainedStage]:
    return [stage for stage in report.stages if stage.steps]


def _trained_of(part: TrainedStage | TrainedPhase, done: int, planned: int | None) -> str:
    """Returns `_of` for a stage or a phase, or "-" if another run has trained it."""
    return "-" if part.is_inherited else _of(done, planned)


def _of(done: int | None, planned: int | None) -> str:
    """Returns what was done, and what was planned if that is something else."""
    if done is None or planned is None or done == planned:
        return count(planned if done is None else done)
    return f"{done:,} of {planned:,}"


def _number(count: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def _clock(time: float) -> str:
    return datetime.fromtimestamp(time).astimezone().strftime(CLOCK)


def difference_table(names: Sequence[str], differences: Mapping[str, Sequence[str]]) -> Table:
    """Returns the settings in which runs differ, with one column per run."""
    title = "differing settings"
    table = build_table(title, *(Text(visible(name)) for name in names), left=(title,))
    for key, values in differences.items():
        table.add_row(*(Text(visible(cell)) for cell in (key, *values)))
    return table
