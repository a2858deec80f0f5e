"""Within a step, the host never waits for the device that computes it."""

from collections import Counter
from itertools import pairwise

import pytest

from gpu_rehearsal.rehearsal import on_devices, pretrain, recorded_by_process

READ = "event.synchronize"
STEPS, MICRO_BATCHES = 6, 4


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
    steps = pretrain(
        tmp_path / "run",
        f"trainer.num_nodes={processes}",
        "trainer.val_samples=0",
        "checkpoint.every_steps=null",
        "trainer.max_samples=48",
        *words,
        environment=on_devices(processes, record=tmp_path / "record"),
    )
    assert len(steps) == STEPS
    workers = [
        [row["kind"] for row in rows if row["kind"] != "collective"]
        for rows in recorded_by_process(tmp_path / "record")
        if any(row["kind"] == READ for row in rows)
    ]
    assert len(workers) == processes
    planes = 3 if "data.document_mask=true" in words else 2
    for kinds in workers:
        reads = [place for place, kind in enumerate(kinds) if kind == READ]
        assert len(reads) == STEPS
        # The first step prepares pipelines. The last one is finished without another step.
        for before, after in pairwise(reads[:-1]):
            assert Counter(kinds[before:after]) == {
                READ: 1,
                "pinned to host": 1,
                "pinned to device": planes * MICRO_BATCHES,
            }
