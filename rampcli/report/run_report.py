"""The facts of a report: what a run has trained, beside its plan, and where its time went."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rampcli.batch.noise_scale import NOISE_COLUMNS, SCALE_COLUMNS, NoiseScale
from rampcli.estimate.model_size import ModelSize
from rampcli.runs.directory import RunDirectory
from rampcli.runs.facts import CRASHED, RunFacts
from rampcli.runs.metrics import METRICS, Metric
from rampcli.runs.record import RunRecord
from rampcli.runs.recorded_phases import length_at, phase_of
from rampcli.runs.stages import SPAN_COLUMNS, STAGE_METRICS, Spans, TrainedStage, trained_stages
from rampcli.runs.time_parts import time_parts
from rampcli.runs.time_spent import STOPPED, TimeSpent
from rampcli.runs.trained_phases import TrainedPhase, trained_phases


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """Contents of a report of a run.

    Attributes:
        name, path, unit: of the run.
        status: as in state.json, or "crashed".
        size: size of the model, or None if it is unknown.
        settings_problem: why this version refuses the settings, or None.
        tokens: tokens that it was trained on, or None if they are unknown.
        facts: what the run has done.
        ended_at: last sign of life, in seconds since 1970.
        time: where the time went.
        parts: the same in seconds by name, in order, with training divided further.
        stages, phases: as planned and as trained. A run without phases has none.
        tokens_per_s: tokens per second over all steps.
        noise: noise scale after the last step that measured it, or None if none did.
        noise_length: tokens per sample in that step.
        measured: metrics with a summary that stages have no figure of, such as those that observers
            of the run have declared, and their figures for the whole run.
    """

    name: str
    path: str
    unit: str
    status: str
    size: ModelSize | None
    settings_problem: str | None
    tokens: int | None
    facts: RunFacts
    ended_at: float | None
    time: TimeSpent
    parts: dict[str, float]
    stages: Sequence[TrainedStage]
    phases: Sequence[TrainedPhase]
    tokens_per_s: float | None
    noise: NoiseScale | None
    noise_length: int | None = None
    measured: Sequence[tuple[Metric, float | None]] = ()

    @property
    def validations(self) -> dict[str, list[tuple[int, float]]]:
        """Steps and losses of the validations, by corpus; "" is the only one.

        Losses that are not finite are left out.
        """
        return self.validated("loss")

    def validated(self, column: str) -> dict[str, list[tuple[int, float]]]:
        """Returns the same of a column: "loss", or one of `LOSSES_OF_AVERAGES`."""
        return {
            corpus or "": known
            for corpus, points in self.facts.events.validations.items()
            if (known := [(one["step"], one[column]) for one in points if one[column] is not None])
        }

    def share_of(self, part: str) -> float | None:
        """Returns the share of a part in the running time; None if the run was stopped then."""
        running_s = self.time.running_s
        return None if part == STOPPED or running_s <= 0 else self.parts[part] / running_s

    def to_json(self) -> dict[str, Any]:
        """Returns the facts for `--json`."""
        facts, events = self.facts, self.facts.events
        return {
            "name": self.name,
            "path": self.path,
            "status": self.status,
            "unit": self.unit,
            "parameters": None if self.size is None else self.size.parameters,
            "embedding_parameters": None if self.size is None else self.size.embeddings,
            "settings_problem": self.settings_problem,
            "tokens": self.tokens,
            "origin": events.origin,
            "device_name": events.newest.get("start", {}).get("device_name"),
            "began_at": events.started,
            "ended_at": self.ended_at,
            "consumed_samples": facts.consumed_samples,
            "steps": facts.step,
            "parts": [
                {"name": name, "s": s, "share": self.share_of(name)}
                for name, s in self.parts.items()
            ],
            "phase": facts.phase,
            "phases": [asdict(phase) for phase in self.phases],
            "stages": [
                {**asdict(stage), "phase": phase_of(facts.plan, stage.stage)}
                for stage in self.stages
            ],
            "validations": self.validations,
            "ema_validations": self.validated("ema_loss"),
            "merge_validations": self.validated("merge_loss"),
            "noise_scale": None if self.noise is None else asdict(self.noise),
            "metrics": {one.name: value for one, value in self.measured},
            "lost_steps": events.lost_steps,
            "counts": events.counts,
            "boundary_s": events.median_s("boundary", "lost_s"),
            "save_s": events.median_s("checkpoint", "save_s"),
            "stall_s": events.median_s("checkpoint", "stall_s"),
            "warnings": events.warnings,
            "changes": events.changes,
            "profiles": list(events.profiles.values()),
            "error": facts.error,
            "elapsed_s": self.time.elapsed_s,
            "running_s": self.time.running_s,
            "goodput": self.time.goodput,
            "stopped_s": self.time.parts[STOPPED],
        }


def report_run(record: RunRecord, *, now: float | None = None) -> RunReport:
    """Returns the report of a run.

    Args:
        now: the present time if the run is training, else None.
    """
    facts = record.facts
    metrics = {name: values for name, values in record.metrics.items() if values.dtype != object}
    spans, spent = Spans(metrics), facts.time_spent(now=now)
    directory = RunDirectory(record.path)
    stages = trained_stages(facts, spans)
    parts = time_parts(spent, facts, spans, directory, unit=record.unit)
    ended_at, status = facts.events.ended, facts.recorded["status"]
    return RunReport(
        name=record.name,
        path=str(record.path),
        unit=record.unit,
        status=CRASHED if status == "running" and now is None else status,
        size=record.size,
        settings_problem=record.settings_problem,
        tokens=facts.tokens(unit=record.unit),
        facts=facts,
        ended_at=None if ended_at is None else max(ended_at, facts.last_step_at or 0.0, now or 0.0),
        time=spent,
        parts=parts,
        stages=stages,
        phases=trained_phases(facts, stages, record.events),
        tokens_per_s=spans.mean_rate("tokens_per_s"),
        noise=last_noise_scale(metrics),
        noise_length=_noise_length(facts, metrics),
        measured=[
            (one, _figure(one, metrics))
            for one in (*METRICS.values(), *directory.read_columns())
            if one.summary and one.name not in STAGE_METRICS
        ],
    )


def _figure(metric: Metric, metrics: Mapping[str, NDArray[Any]]) -> float | None:
    """Returns the figure of a metric for the steps that have measured it."""
    if metric.name not in metrics:
        return None
    known = np.isfinite(metrics[metric.name])
    columns = (metric.name, "step_time_s", *SPAN_COLUMNS)
    return Spans({name: metrics[name][known] for name in columns}).figure(metric)


def _noise_length(facts: RunFacts, metrics: Mapping[str, NDArray[Any]]) -> int | None:
    """Returns the tokens per sample of the last step that measured the noise scale."""
    measured = _measured(metrics)
    if not len(measured):
        return None
    return length_at(facts.plan, int(metrics["consumed_samples"][measured[-1]]))


def last_noise_scale(metrics: Mapping[str, NDArray[Any]]) -> NoiseScale | None:
    """Returns the noise scale after the last step that measured it, or None if none did."""
    measured = _measured(metrics)
    if not len(measured):
        return None
    known = (metrics[name][measured[-1]] if name in metrics else np.nan for name in SCALE_COLUMNS)
    return NoiseScale(*(float(value) if np.isfinite(value) else None for value in known))


def _measured(metrics: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Returns the rows of the steps that measured the noise of the gradient."""
    return np.flatnonzero(np.isfinite(metrics.get(NOISE_COLUMNS[0], np.zeros(0))))
