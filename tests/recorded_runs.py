"""Run directories of two stages, and of three phases, written without training."""

import json
from pathlib import Path
from typing import Any

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.launch.run import write_run_files
from rampcli.planning.resolve import resolve
from rampcli.runs.directory import RunDirectory
from run_files import metrics_row, state

STEPS = 20
"""Steps of each stage. The first takes 2 s each, the second 1 s."""


def write_run(path: Path, *words: str, loss: float | None = 4.0) -> RunDirectory:
    """Writes a run that has stopped in its second stage, ten seconds after its start."""
    directory = RunDirectory(path)
    overrides = ["model.rampup_batch_size=[4,4,80]", "model.global_batch_size=8"]
    overrides += ["trainer.max_samples=400", "trainer.num_nodes=2", *words]
    recipe = llm.from_factory("llama3_tiny")
    recipe.name = path.name
    write_run_files(directory, resolve(apply_overrides(recipe, overrides)), [])
    directory.write_state(state(status="preempted", step=2 * STEPS))
    rows, now, samples = [], 110.0, 0
    for step in range(1, 2 * STEPS + 1):
        stage = int(step > STEPS)
        batch, seconds = (8, 1.0) if stage else (4, 2.0)
        now, samples = now + seconds, samples + batch
        row = metrics_row(
            step=step,
            stage=stage,
            consumed_samples=samples,
            global_batch_size=batch,
            world_size=1 + stage,
            loss=None if step == 1 or loss is None else loss / step,
            step_time_s=seconds,
            tokens_per_s=128 * batch / seconds,
        )
        rows.append(row | {"time": now, "data_time_s": 0.1, "mfu": None})
    directory.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for time, event, facts in (
        (100.0, "launch", {"stage": 0, "num_nodes": 1}),
        (106.0, "start", {"step": 0, "device_name": "a processor"}),
        (110.0, "validation", {"step": 0, "consumed_samples": 0, "loss": 5.5, "validation_s": 3.0}),
        (110.0, "stage", {"step": 0, "stage": 0}),
        (now, "stop", {"step": 2 * STEPS, "status": "preempted", "save_s": 0.0}),
    ):
        directory.append_row(directory.events, {"event": event, "time": time, **facts})
    return directory


PHASES = (
    *("model.rampup_batch_size=null", "model.global_batch_size=8"),
    *("phases.a.until=steps:10", "phases.b.until=steps:20", "phases.b.data.sequence_length=256"),
    *("phases.c.until=steps:30", "phases.c.data.sequence_length=64"),
)


def write_phased_run(
    path: Path, *words: str, steps: int = 16, origin: int | None = None
) -> RunDirectory:
    """Writes a run that has stopped after some steps of one second, each of 8 samples.

    With `origin`, the steps up to there are those of the run runs/other.

    Its phases a, b and c have samples of 128, 256 and 64 tokens. After the last step of phase
    number n, its validation loss is 4 - n, and before the first step of the next one, it is 9.
    """
    directory = RunDirectory(path)
    recipe = llm.from_factory("llama3_tiny")
    recipe.name = path.name
    resolved = resolve(apply_overrides(recipe, (*PHASES, *words)))
    plan = resolved.plan
    write_run_files(directory, resolved, [])
    directory.write_state(state(status="preempted", step=steps))

    def record(kind: str, step: int, **facts: Any) -> None:
        place = {"step": step, "consumed_samples": 8 * step}
        directory.append_row(
            directory.events, {"event": kind, "time": 100.0 + step, **place, **facts}
        )

    def validate(step: int, phase: str, loss: float) -> None:
        record("validation", step, phase=phase, loss=loss, validation_s=0.0)

    begun = origin or 0
    if origin is not None:
        record("branch", origin, run="runs/other")
    record("start", begun)
    for number, phase in enumerate(resolved.phases):
        first, last = phase.plan.first.steps, phase.plan.end.steps
        if begun <= first <= steps:
            if first > 0:
                validate(first, phase.name, 9.0)
            record("stage", first, stage=number, phase=phase.name)
        if begun < last <= steps:
            validate(last, phase.name, 4.0 - number)
    rows = []
    for step in range(begun + 1, steps + 1):
        stage = plan.stage_at(8 * (step - 1))
        row = metrics_row(
            step=step,
            stage=stage.stage,
            consumed_samples=8 * step,
            consumed_tokens=plan.tokens_at(8 * step),
            global_batch_size=8,
            loss=5.0 / step,
            step_time_s=1.0,
            samples_per_s=8.0,
            tokens_per_s=8.0 * plan.of(stage).sequence_length,
        )
        rows.append(row | {"time": 100.0 + step})
    directory.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    record("stop", steps, status="preempted", save_s=0.0)
    return directory
