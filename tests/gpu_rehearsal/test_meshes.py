"""Every mesh trains on GPUs as it does on the CPU: the same losses, and the same checkpoints."""

import numpy as np
import pytest

from gpu_rehearsal.gpu_runs import (
    CLOSE,
    as_words,
    assert_same_checkpoints,
    assert_same_numbers,
    on_both,
)
from once import make_once
from rampcli.data.indexed import write_index
from tiny_runs import GPT, Run

# Four steps through a ramp, with accumulation, masked documents, validations, averaged weights, and
# checkpoints that are written in the background.
WORDS = {
    "data": "indexed",
    "data.split": "[9,1,0]",
    "data.document_mask": "true",
    "data.micro_batch_size": "2",
    "model.num_query_groups": "2",
    "model.global_batch_size": "8",
    "model.rampup_batch_size": "[4,4,6]",
    "optim.weight_decay": "2",  # so large that its effect shows within a few steps
    "trainer.max_samples": "24",
    "trainer.val_samples": "4",
    "trainer.val_every_steps": "2",
    "rampup.at_boundary": "continue",
    "rampup.node_policy": "fixed",
    "checkpoint.every_steps": "2",
    "checkpoint.async": "true",
    "average.ema": "200",
    "average.merge": "from:steps:1",
}
TENSOR, PIPELINE, CONTEXT = (
    f"parallel.{axis}_parallel_size" for axis in ("tensor", "pipeline", "context")
)
SHARD, VIRTUAL = "parallel.data_parallel_shard_size", "parallel.virtual_pipeline_parallel_size"
MICRO, RECOMPUTE = "data.micro_batch_size", "trainer.activation_checkpointing"
FP32, BF16 = {}, {"trainer.precision": "bf16"}
DEEP = {"model.num_layers": 4}
MUON = {"optim.optimizer": "muon"}
COUPLED = {
    "schedule.batch_coupling": "0.6",
    "schedule.beta2_coupling": "half_life",
    "schedule.weight_decay_coupling": "timescale",
}
Z_LOSS = {"loss.z_weight": 0.2}
NOISE = {"noise_scale.every_steps": 1}
MESHES = {
    "one rank": (1, FP32 | NOISE | Z_LOSS | {MICRO: 4}),
    "one rank, bf16, muon, layers recomputed": (1, BF16 | MUON | {RECOMPUTE: "full"}),
    "fsdp2, coupled to the batch": (2, FP32 | COUPLED),
    "ddp2, muon, coupled to the batch": (2, MUON | COUPLED | {SHARD: 1}),
    "ddp2, bf16, gpt": (2, BF16 | GPT | {SHARD: 1}),
    "hsdp2x2, bf16, layers recomputed in part": (
        4,
        BF16 | NOISE | {SHARD: 2, MICRO: 1, RECOMPUTE: "selective"},
    ),
    "tp2 x fsdp2, gradients reduced after each micro batch": (
        4,
        NOISE | Z_LOSS | {TENSOR: 2, MICRO: 1, "trainer.accumulate_reduce": "each"},
    ),
    "tp2, muon": (2, MUON | {TENSOR: 2}),
    "pp2, bf16": (2, BF16 | NOISE | Z_LOSS | {PIPELINE: 2, MICRO: 1}),
    "pp2 interleaved, layers recomputed": (
        2,
        DEEP | {PIPELINE: 2, VIRTUAL: 2, RECOMPUTE: "full"},
    ),
    "cp2, a window": (2, NOISE | {CONTEXT: 2, "model.sliding_window": 5}),
    "8 = pp2 x fsdp2 x tp2, bf16": (8, BF16 | {PIPELINE: 2, TENSOR: 2, MICRO: 1}),
    "8 = hsdp2x2 x cp2, muon": (8, MUON | {SHARD: 2, CONTEXT: 2, MICRO: 1}),
}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Returns the prefix of a corpus of 64 tokens. Most samples hold several documents."""

    def write(folder):
        numbers = np.random.default_rng(7)
        lengths = numbers.integers(1, 12, size=600)
        tokens = numbers.integers(64, size=lengths.sum()).astype("<u2")
        (folder / "short.bin").write_bytes(tokens.tobytes())
        write_index(folder / "short.idx", np.dtype("<u2"), lambda: iter([lengths]))

    return make_once(tmp_path_factory, "corpus", write) / "short"


@pytest.mark.parametrize("mesh", MESHES)
def test_a_mesh_of_gpus_trains_and_saves_as_it_does_on_the_cpu(mesh, tmp_path, corpus):
    processes, settings = MESHES[mesh]
    gpu, cpu = Run(tmp_path / "gpu"), Run(tmp_path / "cpu")
    on_both(gpu, cpu, processes, *as_words(WORDS, {"data.path": corpus}, settings))
    # Muon orthogonalises in bf16, which can enlarge the last bit of a gradient.
    has_bf16 = any(settings.items() >= each.items() for each in (BF16, MUON))
    within = CLOSE["bf16" if has_bf16 else "fp32"]
    assert {row["world_size"] for row in gpu.rows} == {processes}
    assert_same_numbers(gpu, cpu, within=within)
    for row, expected in zip(gpu.rows, cpu.rows, strict=True):
        assert ("grad_var" in row) == (settings.items() >= NOISE.items())
        noise = {name: expected[name] for name in ("grad_sq", "grad_var") if name in expected}
        close = pytest.approx(noise, rel=100 * within, abs=100 * within * row["grad_norm"] ** 2)
        assert {name: row[name] for name in noise} == close
    assert_same_checkpoints(gpu, cpu, within=10 * within)
