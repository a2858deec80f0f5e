"""Times the real training step on this rank."""

from functools import partial

import torch.distributed as dist

from rampcli.config import snapshot
from rampcli.config.layers import sources_named
from rampcli.errors import EXIT_INTERRUPTED
from rampcli.models.linear import set_matmul_precision
from rampcli.parallel.ranks import broadcast_from_rank_0, gather_from_all_ranks, peak_bytes
from rampcli.planning.run_plan import run_plan
from rampcli.train.loop import Trainer
from rampcli.train.observers.boundary import BoundaryCosts
from rampcli.train.stopping import StopAgreed, StopRequest
from rampcli.tune.diagnose import MemoryPressure, diagnose
from rampcli.tune.diagnosis import AS_IS, DIAGNOSIS_FILE, SO_FAR, Diagnosis
from rampcli.tune.median import median_of
from rampcli.tune.sizes import timed_batch_plan
from rampcli.tune.trial_files import SIGNS, Result, TrialDirectory, TrialOrder
from rampcli.worker.assemble import build_trainer, naming_out_of_memory
from rampcli.worker.join import join_ranks


def measure(trial: TrialDirectory, stop: StopRequest, *, started: float) -> int:
    """Times the steps of a trial and writes result.json on rank 0. Returns the exit code.

    Args:
        started: when this process started, in seconds since 1970.
    """
    resolved = run_plan(snapshot.read(trial.config))
    with sources_named(resolved.config):
        device = join_ranks(
            resolved.config.trainer, timeout_s=resolved.config.launch.start_timeout_s
        )
        set_matmul_precision(resolved.config.trainer.matmul_precision)
        with naming_out_of_memory(resolved, lambda: 0):
            costs = BoundaryCosts(run=trial, started=started, imported=started)
            trainer = build_trainer(resolved, resolved.phases[0], trial, device, stop, costs)
            order, pressure = trial.read_order(), MemoryPressure(device)
            diagnosis: Diagnosis | None = None
            try:
                if order.diagnose_s is None:
                    step_s = time_steps(trainer, order, pressure)
                else:
                    diagnosis = diagnose(
                        trainer, order, pressure, after_round=partial(_write_so_far, trial)
                    )
                    step_s = {order.timed[-1]: [*diagnosis.seconds[AS_IS]]}
            except StopAgreed:
                return EXIT_INTERRUPTED
            result = gather_result(step_s, pressure)
    if dist.get_rank() == 0:
        if diagnosis is not None:
            trial.write_json(trial.path / DIAGNOSIS_FILE, diagnosis.to_json())
        trial.write_result(result)
    return 0


def _write_so_far(trial: TrialDirectory, diagnosis: Diagnosis) -> None:
    if dist.get_rank() == 0:
        trial.write_json(trial.path / SO_FAR, diagnosis.to_json())


def time_steps(
    trainer: Trainer, order: TrialOrder, pressure: MemoryPressure
) -> dict[int, list[float]]:
    """Times each kind of step until its median is precise enough or `most_steps` are timed.

    The steps of the largest kind come first, so that memory reaches its peak early.

    Args:
        pressure: counts signs that memory is short in the steps that are timed, of all kinds.
    """
    trainer.observers.at_start(trainer.state)
    trainer.compile()
    step_s: dict[int, list[float]] = {}
    for accumulate in sorted(order.timed, reverse=True):
        for _ in range(order.effort.warm_up_steps):
            time_step(trainer, accumulate, MemoryPressure(pressure.device))
        times = step_s[accumulate] = [time_step(trainer, accumulate, pressure)]
        while not broadcast_from_rank_0(order.effort.is_enough(median_of(times))):
            times.append(time_step(trainer, accumulate, pressure))
    return step_s


def gather_result(step_s: dict[int, list[float]], pressure: MemoryPressure) -> Result:
    """Returns the times of this rank with the memory of all ranks."""
    ranks = gather_from_all_ranks({"seen": pressure.seen, "peak": peak_bytes(pressure.device)})
    return Result(
        step_s=step_s,
        peak_memory_bytes=[rank["peak"] for rank in ranks],
        signs={name: sum(rank["seen"].get(name, 0) for rank in ranks) for name in SIGNS},
    )


def time_step(trainer: Trainer, accumulate: int, pressure: MemoryPressure) -> float:
    """Takes a step of `accumulate` micro batches per rank, and returns its seconds.

    Raises:
        StopAgreed: a rank was asked to stop.
    """
    stage = trainer.plan.stage_at(trainer.state.consumed_samples)
    batch_plan = timed_batch_plan(stage, accumulate)
    batch = trainer.read(batch_plan)
    # Reading from a file also faults pages in from the disk, without a lack of memory.
    with pressure.watched():
        step = trainer.take_step(batch)
    trainer.state.advance(batch_plan.global_batch_size)
    trainer.observers.after_step(trainer.state, step)
    return step.step_time_s
