"""Shows a run in phases: what holds for some of them, and what each of them reads."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rampcli.batch.ramp import StageExtent
from rampcli.config.phases import lines_by_phase
from rampcli.planning.corpus_passes import corpus_passes, describe_passes
from rampcli.planning.run_plan import Resolved, ResolvedPhase
from rampcli.settings.data import corpora_of, describe_data

MOST_CORPORA = 3
"""Most corpora in a cell."""


def by_phase(
    resolved: Resolved, lines_of: Callable[[ResolvedPhase], Iterable[str]]
) -> Iterator[str]:
    """Yields the lines of each phase. A line on some of them says which.

    Finished phases that fit no nodes are left out.
    """
    phases = [phase for phase in resolved.phases if phase.plan.stages]
    lines = ((phase.name, line) for phase in phases for line in lines_of(phase))
    yield from lines_by_phase(lines, phases=len(phases))


def data_lines(resolved: Resolved) -> list[str]:
    """Returns lines about the corpora of a run, and how often it reads each of them."""
    data = by_phase(resolved, lambda phase: [describe_data(phase.config)])
    return [*(f"data: {line}" for line in data), *describe_passes(resolved)]


def stage_rates(phase: ResolvedPhase, stage: StageExtent) -> tuple[float, float | None]:
    """Returns the learning rate of the first step of a stage and of its last; None without end."""
    rate, size = phase.rate, stage.global_batch_size
    first = rate.at(stage.first_sample + size, global_batch_size=size)
    end = stage.end_sample
    return first, None if end is None else rate.at(end, global_batch_size=size)


def corpora_cell(resolved: Resolved, stage: StageExtent) -> str:
    """Returns the corpora of a stage, each with the passes of the run over it up to its end.

    Passes are left out for corpora that were not opened, and for a stage without end.
    """
    config, end = resolved.of(stage).config, stage.end_sample
    found = [] if end is None else corpus_passes(resolved, end)
    passes = {one.facts.name: one.passes for one in found}
    named = list(dict.fromkeys(str(path) for _, path in corpora_of(config)))
    cells = [
        Path(name).name + ("" if passes.get(name) is None else f" {passes[name]:.2f}")
        for name in named
    ]
    more = len(cells) - MOST_CORPORA
    cells = cells[:MOST_CORPORA] + ([f"+{more}"] if more > 0 else [])
    without_path = config.data.source if config.data.task is None else config.data.task
    return ", ".join(cells) or without_path
