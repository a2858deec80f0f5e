"""A run as data: its settings, its plan, what it trained and what happened."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rampcli.config import snapshot
from rampcli.errors import RampcliError, printable, reason_of, shown
from rampcli.estimate.model_size import ModelSize, model_size
from rampcli.runs.columns import Columns
from rampcli.runs.directory import BEFORE_THE_START, RunDirectory, find_run
from rampcli.runs.facts import RunFacts
from rampcli.runs.rows import read_rows
from rampcli.runs.time_spent import TimeSpent
from rampcli.settings.by_key import flatten, leaves


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """The settings of a run.

    Attributes:
        values: value of each setting by dotted key.
        unit: what the run counts: samples, or prompts.
        size: size of the model, or None if it is unknown.
        problem: why this version refuses the settings, or None. They may be those of another
            version. Then `values` is what the file says, and the size is unknown.
    """

    values: dict[str, Any] = field(default_factory=dict)
    unit: str = "samples"
    size: ModelSize | None = None
    problem: str | None = None


def read_settings(path: Path) -> RunSettings:
    """Returns the settings of a run, also if this version refuses them.

    Args:
        path: its config.yaml.

    Raises:
        UsageError: the file does not exist or is not plain YAML.
    """
    tree = snapshot.read_tree(path)
    unit = snapshot.unit_in(tree)
    try:
        config = snapshot.config_in(tree, path)
    except RampcliError as error:
        return RunSettings(values=flatten(tree), unit=unit, problem=reason_of(error))
    return RunSettings(values=dict(leaves(config)), unit=unit, size=model_size(config))


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """What a run directory says about a run.

    Attributes:
        path: the run directory.
        name: name of the run.
        unit: what the run counts: samples, or prompts.
        settings: value of each setting by dotted key.
        settings_problem: why this version refuses the settings, or None. They may be those of
            another version. Then `settings` is what the file says.
        plan: the plan, as `rampcli plan --json` prints it. Without a plan, its `stages` are empty.
        metrics: columns of metrics.jsonl by name, one value per step. Whole numbers have the type
            int64, others float64, with NaN for null. Columns of text are arrays of objects.
        events: rows of events.jsonl.
        state: contents of state.json.
    """

    path: Path
    name: str
    unit: str
    settings: dict[str, Any]
    settings_problem: str | None
    plan: dict[str, Any]
    metrics: Mapping[str, NDArray[Any]]
    events: list[dict[str, Any]]
    state: dict[str, Any]
    facts: RunFacts = field(repr=False)
    """What the run has done, as every command shows it. Only rampcli itself uses it."""
    size: ModelSize | None = field(repr=False)
    """Size of the model, or None if it is unknown. Only rampcli itself uses it."""

    @property
    def parameters(self) -> int | None:
        """Number of parameters of the model, or None if its settings are refused."""
        return None if self.size is None else self.size.parameters

    @property
    def embedding_parameters(self) -> int | None:
        """How many parameters are embeddings, or None if its settings are refused."""
        return None if self.size is None else self.size.embeddings

    @property
    def last_step_at(self) -> float | None:
        """When the last step ended, in seconds since 1970: 0 without a step, None if unknown."""
        return self.facts.last_step_at

    def time_spent(self, *, now: float | None = None) -> TimeSpent:
        """Returns where the time of the run went.

        Args:
            now: the present time in seconds since 1970 if the run is training, else None.
        """
        return self.facts.time_spent(now=now)


def told_apart(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Returns the runs, each of several with the same name named by its path."""
    counts = Counter(record.name for record in records)
    return [
        replace(record, name=printable(str(record.path))) if counts[record.name] > 1 else record
        for record in records
    ]


def read_run(run: str | Path | RunDirectory) -> RunRecord:
    """Reads a run, whether it has ended or is training.

    pandas and polars make a data frame of `read_run(RUN).metrics`.

    Args:
        run: path of a run directory, or the name of a run below runs/.

    Raises:
        UsageError: there is no run directory, or its config.yaml is not plain YAML.
        DamagedFileError: a file of the run is damaged.
    """
    directory = run if isinstance(run, RunDirectory) else find_run(str(run))
    settings = read_settings(directory.config)
    columns = Columns(directory.metrics)
    columns.read()
    plan = directory.read_plan() or {"stages": []}
    events = list(read_rows(directory.events))
    state = directory.read_state() or BEFORE_THE_START
    facts = RunFacts(state=state, plan=plan, rows=columns.last)
    facts.events.add(events)
    return RunRecord(
        path=directory.path,
        name=printable(shown(settings.values.get("name", directory.path.name))),
        unit=settings.unit,
        settings=settings.values,
        settings_problem=settings.problem,
        size=settings.size,
        plan=plan,
        metrics={name: columns[name] for name in columns},
        events=events,
        state=state,
        facts=facts,
    )
