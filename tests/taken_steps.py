"""Steps that observers are told of."""

import numpy as np

from rampcli.data.loader import Batch
from rampcli.planning.run_plan import Resolved
from rampcli.train.step import StepResult, TakenStep


def step_of(resolved: Resolved, stage_number: int, step_time_s: float) -> TakenStep:
    stage = resolved.plan.stages[stage_number]
    return TakenStep(
        stage=stage,
        batch=Batch(
            first_sample=0,
            plan=resolved.plan.batch_on(stage, stage.world_size),
            samples=np.arange(4),
            data_time_s=0.01,
        ),
        result=StepResult(loss=2.0, grad_norm=1.0),
        lr=0.1,
        skipped=None,
        step_time_s=step_time_s,
    )
