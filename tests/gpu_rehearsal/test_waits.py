"""Within a step, the host never waits for the device that computes it."""

import inspect
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from gpu_rehearsal.gpu_runs import recorded_on_its_gpu
from policy_runs import PolicyRun, weights_to_start_from
from rampcli.launch.workers import RL_WORKER, WORKER
from rampcli.rl.metrics import RolloutSums
from rampcli.rl.passes import accumulate_policy_gradient
from ranks import run_ranks
from tiny_runs import Run

READ = "event.synchronize"
STEPS, MICRO_BATCHES = 6, 4
WORDS = (
    *("trainer.accelerator=gpu", "trainer.val_samples=0", "trainer.max_samples=48"),
    *("model.rampup_batch_size=null", "data.audit_order=false", "checkpoint.every_steps=null"),
)


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        (
            2,
            [
                "data.document_mask=true",
                "parallel.context_parallel_size=2",
                "optim.optimizer=muon",
                "optim.skip_step_sigma=6",
                "trainer.precision=bf16",
                "trainer.activation_checkpointing=selective",
            ],
        ),
        (4, ["parallel.tensor_parallel_size=2", "parallel.pipeline_parallel_size=2"]),
    ],
)
def test_a_step_reads_the_numbers_of_the_step_before_once_and_copies_only_from_pinned_memory(
    tmp_path, processes, words
):
    run = Run(tmp_path / "run")
    run.describe(*WORDS, f"trainer.devices={processes}", *words)
    ranks = run_ranks(
        processes, recorded_on_its_gpu, WORKER, str(run.path), logs=run.directory.logs
    )
    assert len(run.rows) == STEPS
    planes = 3 if "data.document_mask=true" in words else 2
    for rows in ranks:
        rows = [row for row in rows if row[0] != "collective"]
        reads = [place for place, (kind, _) in enumerate(rows) if kind == READ]
        assert len(reads) == STEPS
        # The first step prepares pipelines. The last one is finished without another step.
        for before, after in pairwise(reads[:-1]):
            assert Counter(kind for kind, _ in rows[before:after]) == {
                READ: 1,
                "pinned to host": 1,
                "pinned to device": planes * MICRO_BATCHES,
            }, rows[before:after]


def places_of(function: Callable[..., object]) -> set[str]:
    """Returns the places of a function's lines, as `pretended_cuda.recorded` names them."""
    lines, first = inspect.getsourcelines(function)
    file = function.__module__.replace(".", "/")
    return {f"{file}.py:{line}" for line in range(first, first + len(lines))}


def test_an_update_of_a_policy_reads_its_numbers_once_and_sums_metrics_on_the_host(
    tmp_path, tmp_path_factory
):
    run = PolicyRun(tmp_path / "run", weights_to_start_from(tmp_path_factory))
    words = ["trainer.accelerator=gpu", "trainer.devices=2", "trainer.num_nodes=1"]
    run.describe(*words, "trainer.max_steps=3", "trainer.val_samples=0")
    ranks = run_ranks(2, recorded_on_its_gpu, RL_WORKER, str(run.path), logs=run.directory.logs)
    updates = places_of(accumulate_policy_gradient)
    for rows in ranks:
        waits = [(kind, place) for kind, place in rows if kind != "collective"]
        assert [kind for kind, place in waits if place in updates] == ["pageable to host"] * 3
        assert not {place for _, place in waits} & places_of(RolloutSums.over_ranks)
