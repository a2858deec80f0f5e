"""A run directory of two stages, written without training."""

import json
from pathlib import Path

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.launch.run import describe
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
    describe(directory, resolve(apply_overrides(recipe, overrides)), [])
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
