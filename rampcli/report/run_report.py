"""The facts of a report: what a run has trained, beside its plan, and where its time went."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rampcli.batch.noise_scale import NOISE_COLUMNS, SCALE_COLUMNS, NoiseScale
from rampcli.runs.directory import RunDirectory
from rampcli.runs.event_kinds import TimePart
from rampcli.runs.facts import CRASHED, RunFacts
from rampcli.runs.metrics import METRICS, STAGE_METRICS, Metric
from rampcli.runs.record import RunRecord
from rampcli.runs.recorded_phases import length_at, phase_of
from rampcli.runs.stages import (
    SPAN_COLUMNS,
    Metrics,
    Spans,
    TrainedPhase,
    TrainedStage,
    time_parts,
    trained_phases,
    trained_stages,
)
from rampcli.runs.time_spent import TimeSpent


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """Contents of a report of a run.

    Attributes:
        record: the run.
        status: as in state.json, or "crashed".
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

    record: RunRecord
    status: str
    ended_at: float | None
    time: TimeSpent
    parts: dict[str, float]
    stages: Sequence[TrainedStage]
    phases: Sequence[TrainedPhase]
    tokens_per_s: float | None
    noise: NoiseScale | None = None
    noise_length: int | None = None
    measured: Sequence[tuple[Metric, float | None]] = ()

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.record.name

    @property
    def facts(self) -> RunFacts:
        """What the run has done."""
        return self.record.facts

    @property
    def tokens(self) -> int | None:
        """Tokens that the run was trained on, or None if they are unknown."""
        return self.facts.tokens(unit=self.record.unit)

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
        return None if part == TimePart.STOPPED or running_s <= 0 else self.parts[part] / running_s

    def to_json(self) -> dict[str, Any]:
        """Returns the facts for `--json`."""
        record, facts, events = self.record, self.facts, self.facts.events
        return {
            "name": self.name,
            "path": str(record.path),
            "status": self.status,
            "unit": record.unit,
            "parameters": record.parameters,
            "embedding_parameters": record.embedding_parameters,
            "settings_problem": record.settings_problem,
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
                stage.to_json() | {"phase": phase_of(facts.plan, stage.stage)}
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
            "stopped_s": self.time.parts[TimePart.STOPPED],
        }


def report_run(record: RunRecord, *, now: float | None = None) -> RunReport:
    """Returns the report of a run.

    Args:
        now: the present time if the run is training, else None.
    """
    facts, directory = record.facts, RunDirectory(record.path)
    metrics = {name: values for name, values in record.metrics.items() if values.dtype != object}
    spans, spent = Spans(metrics), facts.time_spent(now=now)
    stages = trained_stages(facts, spans)
    ended_at, status = facts.events.ended, facts.recorded["status"]
    noise, noise_length = _last_noise(facts, metrics)
    return RunReport(
        record=record,
        status=CRASHED if status == "running" and now is None else status,
        ended_at=None if ended_at is None else max(ended_at, facts.last_step_at or 0.0, now or 0.0),
        time=spent,
        parts=time_parts(spent, facts, spans, directory, unit=record.unit),
        stages=stages,
        phases=trained_phases(facts, stages, record.events, unit=record.unit),
        tokens_per_s=spans.mean_rate("tokens_per_s"),
        noise=noise,
        noise_length=noise_length,
        measured=[
            (one, _figure(one, metrics))
            for one in (*METRICS.values(), *directory.read_columns())
            if one.summary and one not in STAGE_METRICS
        ],
    )


def _figure(metric: Metric, metrics: Metrics) -> float | None:
    """Returns the figure of a metric for the steps that have measured it."""
    if metric.name not in metrics:
        return None
    known = np.isfinite(metrics[metric.name])
    columns = (metric.name, "step_time_s", *SPAN_COLUMNS)
    return Spans({name: metrics[name][known] for name in columns}).figure(metric)


def _last_noise(facts: RunFacts, metrics: Metrics) -> tuple[NoiseScale | None, int | None]:
    """Returns the noise scale after the last step that measured it, and its tokens per sample."""
    measured = np.flatnonzero(np.isfinite(metrics.get(NOISE_COLUMNS[0], np.zeros(0))))
    if not len(measured):
        return None, None
    row = measured[-1]
    known = (metrics[name][row] if name in metrics else np.nan for name in SCALE_COLUMNS)
    scale = NoiseScale(*(float(value) if np.isfinite(value) else None for value in known))
    return scale, length_at(facts.plan, int(metrics["consumed_samples"][row]))
