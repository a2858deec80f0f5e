"""Within a step, the host never waits for the device that computes it."""

from collections import Counter
from itertools import pairwise

import pytest

from gpu_rehearsal.gpu_runs import recorded_on_its_gpu
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
    ranks = run_ranks(processes, recorded_on_its_gpu, str(run.path), logs=run.directory.logs)
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
