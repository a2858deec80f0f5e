"""Tables, figures and durations as text, and lines about the model, validations and profiles."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.table import Table
from rich.text import Text

from rampcli.batch.quantities import shorten
from rampcli.errors import visible
from rampcli.estimate.model_size import ModelSize
from rampcli.runs.event_kinds import LOSSES_OF_AVERAGES

T = TypeVar("T")
VALIDATION_TITLES = {
    "loss": "validation loss",
    **LOSSES_OF_AVERAGES,
    "bits_per_byte": "bits per byte",
}
"""Titles of the columns of a validation."""


def figure(number: float | None) -> str:
    """Returns a reward as text, or "-" if it is unknown."""
    return "-" if number is None else f"{number:.3f}"


def count(number: float | None) -> str:
    """Returns a count or a rate as text, or "-" if it is unknown."""
    return "-" if number is None else f"{number:,.0f}"


def in_phase(phase: str | None) -> str:
    """Returns the phase of a run that has some, for a line about it."""
    return "" if phase is None else f", in phase {phase}"


def origin_text(origin: Mapping[str, Any] | None) -> str:
    """Returns the checkpoint of another run with which a run begins, or "-" without one."""
    return "-" if origin is None else f"{origin['run']} after step {origin['step']:,}"


def ends(values: Sequence[int]) -> str:
    """Returns the first and the last value, or the one that both are, or "-" without values."""
    return " to ".join(dict.fromkeys(map(count, (*values[:1], *values[-1:])))) or "-"


def bar(value: float, most: float, *, width: int) -> str:
    """Returns a bar of at most `width` characters, and of at least one for a value above 0."""
    return "█" * max(1, round(width * value / most)) if value > 0 else ""


def share(number: float | None) -> str:
    """Returns a share as text, or "-" if it is unknown."""
    return "-" if number is None else f"{number:.1%}"


def duration(seconds: float) -> str:
    """Returns a duration as `0:42`, `12:05`, `3:07:00` or `5 d 03:07:00`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def evaluation_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the rewards of held-out prompts in one line, from one evaluation to the next."""
    parts = []
    for kind in ("greedy", "sampled"):
        rewards = " -> ".join(figure(row[kind]) for row in rows)
        solved = " -> ".join(share(row[f"{kind}_solved"]) for row in rows)
        parts.append(f"{kind} reward {rewards}, solved {solved}")
    if unscored := rows[-1].get("unscored"):
        reason = rows[-1].get("reason")  # unknown if another rank could not score them
        because = "" if reason is None else f": {reason}"
        parts.append(f"{unscored} of their responses have no reward{because}")
    return f"held-out prompts: {'; '.join(parts)}"


def validation_line(
    validations: Mapping[str | None, Sequence[Mapping[str, Any]]],
    column: str = "loss",
    *,
    digits: int = 3,
) -> str:
    """Returns the losses of each corpus in one line, from one validation to the next.

    `column` may also be "bits_per_byte", or one of `LOSSES_OF_AVERAGES` of runs that average their
    weights. The line of the losses ends with those of the averages.
    """
    parts = []
    for corpus, rows in validations.items():
        values = [row.get(column) for row in rows]
        shown = " -> ".join("nan" if value is None else f"{value:.{digits}f}" for value in values)
        parts.append(shown if corpus is None else f"{corpus} {shown}")
    line = f"{VALIDATION_TITLES[column]} {', '.join(parts)}"
    for averaged in LOSSES_OF_AVERAGES if column == "loss" else ():
        of_average = {
            corpus: known
            for corpus, rows in validations.items()
            if (known := [row for row in rows if row.get(averaged) is not None])
        }
        if of_average:
            line += f"; {validation_line(of_average, averaged, digits=digits)}"
    return line


def build_table(*columns: str | Text, left: Collection[str] = ("",)) -> Table:
    """Returns an empty table without rules, right-aligned except for the columns in `left`."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if str(column) in left else "right", no_wrap=True)
    return table


def table_of(
    rows: Iterable[T],
    columns: Mapping[str, Callable[[T], str]],
    *,
    left: Collection[str] = ("",),
) -> Table:
    """Returns a table with a row for each thing, and cells from the function of each column."""
    table = build_table(*map(as_text, columns), left=left)
    for row in rows:
        table.add_row(*(as_text(cell(row)) for cell in columns.values()))
    return table


def as_text(text: str) -> Text:
    """Returns a text for a cell. It may come from a file: its markup and controls do nothing."""
    return Text(visible(text))


def size_text(size: ModelSize, *, tokens: int | None) -> str:
    """Returns the parameters of a model and the tokens per parameter.

    Args:
        tokens: tokens of the run, or None if it has no end or counts prompts.
    """
    parameters, embeddings = shorten(size.parameters), shorten(size.embeddings)
    text = f"{parameters} parameters, {embeddings} of them embeddings"
    if tokens is None:
        return text
    return f"{text}; {shorten(tokens / size.parameters)} tokens per parameter"


def profile_parts(folder: Path, profiles: Sequence[Mapping[str, Any]]) -> Iterator[str | Table]:
    """Yields the operators of the first profile of a run, and the files of all of them.

    Args:
        folder: the run directory.
        profiles: events `profile`; there may be none.
    """
    for row in profiles[:1]:
        yield f"\n{profile_title(row)}:"
        yield profile_table(row)
    for row in profiles:
        yield from (f"profile: {folder / name}" for name in row["files"])


def profile_title(row: Mapping[str, Any]) -> str:
    """Returns the title of the table of a profile."""
    first, last = row["steps"]
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return f"most expensive operators of {steps} on rank {row['rank']}"


def profile_table(row: Mapping[str, Any]) -> Table:
    """Returns the most expensive operators of a profile, without the time of those they call."""
    times = {"CPU time": "self_cpu_s"}
    if any("self_device_s" in operator for operator in row["operators"]):
        times["GPU time"] = "self_device_s"

    def spent(column: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda operator: f"{operator.get(column, 0) * 1e3:,.1f} ms"

    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "operator": lambda operator: operator["name"],
        "calls": lambda operator: f"{operator['calls']:,}",
        **{title: spent(column) for title, column in times.items()},
    }
    return table_of(row["operators"], columns, left=("operator",))
