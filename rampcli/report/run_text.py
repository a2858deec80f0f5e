"""Tables and lines of `rampcli report`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial

from rich.table import Table

from rampcli.batch.quantities import counted, listed, shorten
from rampcli.report.run_report import RunReport
from rampcli.report.tables import (
    VALIDATION_TITLES,
    as_text,
    build_table,
    count,
    duration,
    ends,
    figure,
    in_phase,
    origin_text,
    share,
    size_text,
    table_of,
)
from rampcli.runs.event_kinds import LOSSES_OF_AVERAGES
from rampcli.runs.metrics import LAST_STEPS, STAGE_METRICS, Metric, measured_of
from rampcli.runs.recorded_phases import phase_of
from rampcli.runs.stages import TrainedPhase, TrainedStage

OVER: dict[str | None, str] = {
    "last": f"the last {LAST_STEPS} that measure it",
    "mean": "all steps",
    "max": "the largest",
    "rate": "the time of all steps",
}
"""What the figure of a metric is taken over, by its way of summarising."""
SHOWN_BY_UNIT: dict[str, Callable[[float | None], str]] = {"share": share, "tokens/s": count}
"""How figures are shown, by their unit. Others have three decimals."""
CLOCK = "%d %b %Y %H:%M"
MOST_MESSAGES = 5
"""Warnings, and changed settings, to print; a run may have very many."""


def summary_lines(report: RunReport) -> Iterator[str]:
    """Yields where a run stands, when it ran, and what interrupted it."""
    facts, record = report.facts, report.record
    yield (
        f"{report.name}: {report.status} after {facts.consumed_samples:,} {record.unit},"
        f" {counted(facts.step, 'step')}{in_phase(facts.phase)}; {record.path}"
    )
    if facts.events.origin is not None:
        earlier = [phase.name for phase in report.phases if phase.is_inherited]
        begun = f"; phases trained before that, not in this run: {listed(earlier)}"
        yield f"continues {origin_text(facts.events.origin)}{begun if earlier else ''}"
    if record.size is None:
        yield (
            "model: its size is unknown, as this version refuses its settings:"
            f" {record.settings_problem}"
        )
    else:
        so_far = "" if report.tokens is None else " so far"
        yield f"model: {size_text(record.size, tokens=report.tokens)}{so_far}"
    if facts.events.started is not None and report.ended_at is not None:
        name = facts.events.newest.get("start", {}).get("device_name")
        device = "" if name is None else f", on {name}"
        yield f"{_clock(facts.events.started)} to {_clock(report.ended_at)}{device}"
    if facts.error is not None:
        yield f"error: {facts.error['message']}"
        if facts.error["remedy"] is not None:
            yield f"try:   {facts.error['remedy']}"


def stage_table(report: RunReport) -> Table:
    """Returns the stages, each as planned and as trained, with the figures of some metrics.

    `causal` is the MFU that counts causal attention only. The loss and the rewards are means over
    the last steps of a stage.
    """
    is_rl = any(stage.pairs is not None for stage in report.stages)
    measured = {
        one.name
        for one in STAGE_METRICS
        if (is_rl and one.group == "rl")
        or any(stage.figures[one.name] is not None for stage in report.stages)
    }
    columns: dict[str, Callable[[TrainedStage], str]] = {
        "phase": lambda stage: str(phase_of(report.facts.plan, stage.stage)),
        "stage": lambda stage: str(stage.stage),
        "batch": lambda stage: str(stage.global_batch_size),
        "pairs": lambda stage: count(stage.pairs),
        "nodes": lambda stage: _of(stage.nodes, stage.planned_nodes),
        "processes": lambda stage: ", ".join(map(str, stage.world_sizes)) or "-",
        report.record.unit: lambda stage: _trained_of(stage, stage.samples, stage.planned_samples),
        "steps": lambda stage: _trained_of(stage, stage.steps, stage.planned_steps),
        **{str(one.column): partial(_figure, one) for one in measured_of(STAGE_METRICS, measured)},
    }
    if not is_rl:
        del columns["pairs"]
    if report.facts.phase is None:
        del columns["phase"]
    return table_of(report.stages, columns, left=("phase",))


def _figure(metric: Metric, stage: TrainedStage) -> str:
    return SHOWN_BY_UNIT.get(metric.unit, figure)(stage.figures[metric.name])


def time_table(report: RunReport) -> Table:
    """Returns where the time of a run went."""
    title = "where the time went"
    shares = {name: report.share_of(name) for name in report.parts}
    columns: dict[str, Callable[[str], str]] = {
        title: str,
        "time": lambda name: duration(report.parts[name]),
        "share": lambda name: "" if shares[name] is None else share(shares[name]),
    }
    table = table_of(report.parts, columns, left=(title,))
    table.add_row("total", duration(report.time.elapsed_s), "", style="bold")
    return table


def measured_table(report: RunReport) -> Table:
    """Returns the figures of metrics that the table of stages does not show."""
    columns: dict[str, Callable[[tuple[Metric, float | None]], str]] = {
        "metric": lambda one: one[0].name,
        "unit": lambda one: one[0].unit,
        "value": lambda one: _short(one[1]),
        "over": lambda one: OVER[one[0].summary],
    }
    return table_of(report.measured, columns, left=("metric", "unit", "over"))


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


def runs_table(reports: Sequence[RunReport]) -> Table:
    """Returns several runs side by side, one per column. Rows without a value are left out."""
    rows: dict[str, Callable[[RunReport], str]] = {
        "status": lambda one: one.status,
        "continues": lambda one: origin_text(one.facts.events.origin),
        "parameters": lambda one: shorten(one.record.size.parameters) if one.record.size else "-",
        "tokens per parameter": lambda one: (
            shorten(one.tokens / one.record.parameters)
            if one.record.parameters and one.tokens is not None
            else "-"
        ),
        "consumed": lambda one: f"{one.facts.consumed_samples:,} {one.record.unit}",
        "steps": lambda one: f"{one.facts.step:,}",
        "batch": lambda one: ends([stage.global_batch_size for stage in _trained(one)]),
        "processes": lambda one: ends([max(stage.world_sizes) for stage in _trained(one)]),
        **{str(one.column): partial(_goal, one) for one in STAGE_METRICS if one.is_goal},
    }
    for column, title in {"loss": "validation loss", **LOSSES_OF_AVERAGES}.items():
        found = [one.validated(column) for one in reports]
        for corpus in dict.fromkeys(name for losses in found for name in losses):
            rows[f"{title} {corpus}".strip()] = partial(_last_loss, column, corpus)
    rows["noise scale"] = lambda one: "-" if one.noise is None else one.noise.short_text()
    for name in dict.fromkeys(metric.name for one in reports for metric, _ in one.measured):
        rows[name] = partial(_measured, name)
    rows |= {
        "tokens/s": lambda one: ends(
            [round(stage.figures["tokens_per_s"] or 0) for stage in _trained(one)]
        ),
        "MFU": lambda one: share(_last_figure(one, "mfu")),
        "time": lambda one: duration(one.time.running_s),
        "goodput": lambda one: share(one.time.goodput),
    }
    cells = {name: [cell(one) for one in reports] for name, cell in rows.items()}
    shown = {name: values for name, values in cells.items() if set(values) != {"-"}}
    return _side_by_side("", [one.name for one in reports], shown)


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
        "prompts at end": lambda phase: count(phase.end_sample),
        "loss": lambda phase: figure(phase.loss),
        "reward": lambda phase: figure(phase.reward),
    }
    units = {one.record.unit for one in reports}
    of_unit = {"tokens at end": "samples", "prompts at end": "prompts", "reward": "prompts"}
    columns = {name: cell for name, cell in columns.items() if of_unit.get(name) in (None, *units)}
    for column in ("loss", *LOSSES_OF_AVERAGES):
        found = dict.fromkeys(one for _, phase in phases for one in phase.validation_losses[column])
        for corpus in found:
            title = f"{VALIDATION_TITLES[column]} {corpus}".strip()
            columns[title] = partial(_loss_of_phase, column, corpus)
    names = list(dict.fromkeys(phase.name for _, phase in phases))
    table = build_table("phase", "run", *map(as_text, columns), left=("phase", "run"))
    for run, phase in sorted(phases, key=lambda pair: names.index(pair[1].name)):
        cells = (phase.name, run, *(cell(phase) for cell in columns.values()))
        table.add_row(*map(as_text, cells))
    return table


def difference_table(runs: Sequence[str], differences: Mapping[str, Sequence[str]]) -> Table:
    """Returns the settings in which runs differ, with one column per run."""
    return _side_by_side("differing settings", runs, differences)


def _side_by_side(title: str, runs: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Table:
    """Returns a table with a column per run, and the name of each row in the column `title`."""
    table = build_table(title, *map(as_text, runs), left=(title,))
    for name, cells in rows.items():
        table.add_row(*map(as_text, (name, *cells)))
    return table


def _loss_of_phase(column: str, corpus: str, phase: TrainedPhase) -> str:
    return figure(phase.validation_losses[column].get(corpus))


def _last_loss(column: str, corpus: str, report: RunReport) -> str:
    losses = report.validated(column).get(corpus)
    return figure(losses[-1][1] if losses else None)


def _last_figure(report: RunReport, metric: str) -> float | None:
    """Returns the figure of a metric in the last stage that was trained."""
    stages = _trained(report)
    return stages[-1].figures[metric] if stages else None


def _goal(metric: Metric, report: RunReport) -> str:
    return SHOWN_BY_UNIT.get(metric.unit, figure)(_last_figure(report, metric.name))


def _measured(name: str, report: RunReport) -> str:
    return _short(next((value for one, value in report.measured if one.name == name), None))


def _short(value: float | None) -> str:
    """Returns a number of any size as text, or "-" if it is unknown."""
    return "-" if value is None else f"{value:.4g}"


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
