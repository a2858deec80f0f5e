"""Every mesh trains like one process."""

import resource
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distributed.average import assert_same_averages, averaged, merged
from distributed.initial_weights import hash_weights
from once import make_once
from rampcli import llm
from rampcli.batch.averages import EMA, MERGE
from rampcli.machine.host import has_bf16_products
from rampcli.parallel.mesh import build_meshes
from rampcli.train.build import build_parts
from rampcli.weights.export import export
from ranks import run_ranks, stop_ranks
from tiny_runs import GPT, Run, assert_every_sample_is_read_once, assert_same_training


def build_part(rank: int) -> dict[str, Any]:
    """Returns the number of parameters, those of this rank, and the peak memory of building it.

    Peak memory is that of the process, which has to be a new one.
    """
    # Imported here, as it costs a second.
    from torch.testing._internal.distributed.fake_pg import FakeStore

    config = llm.llama3_70b.pretrain_recipe()
    config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size = 1, 1
    config.parallel.virtual_pipeline_parallel_size, config.parallel.context_parallel_size = 1, 1
    dist.init_process_group("fake", rank=rank, world_size=1024, store=FakeStore())
    meshes = build_meshes(torch.device("cpu"), config.parallel)
    before_bytes = _peak_bytes()
    (model,) = build_parts(config, meshes, torch.device("cpu"))
    most_bytes = _peak_bytes() - before_bytes
    shards = [parameter.to_local() for parameter in model.parameters()]
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "held": sum(shard.numel() for shard in shards),
        "most_bytes": most_bytes,
        "filled": all(shard.isfinite().all().item() for shard in shards),
    }


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# Four steps through a ramp, with accumulation: two of each batch size.
WORDS = {
    "data.micro_batch_size": "4",
    "model.num_query_groups": "2",
    "model.global_batch_size": "8",
    "model.rampup_batch_size": "[4,4,6]",
    "trainer.max_samples": "24",
    "optim.weight_decay": "2",  # so large that its effect shows within a few steps
    "trainer.val_samples": "4",
    "trainer.val_every_steps": "null",
    "rampup.at_boundary": "continue",
    "rampup.node_policy": "fixed",
}
STEPS = 4
TENSOR, PIPELINE, CONTEXT = (
    f"parallel.{axis}_parallel_size" for axis in ("tensor", "pipeline", "context")
)
SHARD, VIRTUAL = "parallel.data_parallel_shard_size", "parallel.virtual_pipeline_parallel_size"
MICRO = "data.micro_batch_size"
Z_LOSS = {"loss.z_weight": 0.1}
MESHES = {
    "ddp2": ("llama", 2, {SHARD: 1, MICRO: 2}),
    "fsdp2": ("llama", 2, {MICRO: 2}),
    "hsdp2x2": ("llama", 4, {SHARD: 2, MICRO: 1}),
    "tp2 x fsdp2, layers recomputed in part, gradients reduced after each micro batch": (
        "llama",
        4,
        {
            TENSOR: 2,
            MICRO: 2,
            "trainer.activation_checkpointing": "selective",
            "trainer.accumulate_reduce": "each",
        },
    ),
    "pp2": ("llama", 2, {PIPELINE: 2, MICRO: 1}),
    "pp2 in four pieces of a micro batch": (
        "llama",
        2,
        {PIPELINE: 2, "parallel.num_pipeline_microbatches": 4},
    ),
    "pp2 in four pieces of micro batches that grow": (
        "llama",
        2,
        {
            PIPELINE: 2,
            "parallel.num_pipeline_microbatches": 4,
            "rampup.micro_batch": "largest",
            MICRO: 8,
        },
    ),
    "pp2 interleaved": ("deep llama", 2, {PIPELINE: 2, VIRTUAL: 2, MICRO: 2}),
    "pp2 x fsdp2": ("llama", 4, {PIPELINE: 2, MICRO: 1}),
    "cp2": ("llama", 2, {CONTEXT: 2}),
    "8 = pp2 x fsdp2 x tp2": ("llama", 8, {PIPELINE: 2, TENSOR: 2, MICRO: 2}),
    "8 = hsdp2x2 x cp2": ("llama", 8, {SHARD: 2, CONTEXT: 2, MICRO: 1}),
    "pp2 x tp2, gpt": ("gpt", 4, {PIPELINE: 2, TENSOR: 2}),
    "tp2, qwen": ("qwen", 2, {TENSOR: 2}),
    "mistral, cp2 x fsdp2, layers recomputed": (
        "mistral",
        4,
        {CONTEXT: 2, MICRO: 2, "trainer.activation_checkpointing": "full"},
    ),
}
FAMILIES = {
    "llama": {},
    "deep llama": Z_LOSS | {"model.num_layers": 4},
    "gpt": Z_LOSS | GPT,
    "qwen": Z_LOSS
    | {"model.qk_norm": "true", "model.head_size": 16, "model.tie_embeddings": "true"},
    "mistral": Z_LOSS | {"model.sliding_window": 5},
    "muon": {"optim.optimizer": "muon"},
}


def words(*changes: dict) -> list[str]:
    settings = dict(WORDS)
    for change in changes:
        settings |= change
    return [f"{key}={value}" for key, value in settings.items()]


@pytest.fixture(scope="session")
def alone(tmp_path_factory):
    """Returns the run of a family of models on one process."""

    def run_of(family: str) -> Run:
        settings = words(FAMILIES[family])
        run = Run(make_once(tmp_path_factory, family, lambda path: Run(path).workers(1, *settings)))
        assert len(run.rows) == STEPS
        return run

    return run_of


@pytest.mark.parametrize("mesh", [name for name, (_, ranks, _) in MESHES.items() if ranks < 8])
def test_every_mesh_trains_as_one_process_does(mesh, run, alone):
    """Those of eight ranks take steps in `CHAINS`."""
    family, processes, settings = MESHES[mesh]
    run.workers(processes, *words(FAMILIES[family], settings))
    assert {row["world_size"] for row in run.rows} == {processes}
    assert_same_training(run, alone(family))


def test_muon_trains_the_same_on_a_mesh_up_to_its_bf16(run, alone):
    """Orthogonalisation in bf16 can enlarge the last bit of a gradient to the last bit of bf16."""
    run.workers(2, *words(FAMILIES["muon"], {TENSOR: 2}))
    losses, expected = ([row["loss"] for row in each.rows] for each in (run, alone("muon")))
    assert losses == pytest.approx(expected, abs=5e-4)
    assert losses[:3] == pytest.approx(expected[:3], abs=1e-5)


@pytest.mark.parametrize("mesh", ["pp2 x tp2, gpt", "mistral, cp2 x fsdp2, layers recomputed"])
def test_every_mesh_masks_documents_as_one_process_does(mesh, run, short_documents):
    family, processes, settings = MESHES[mesh]
    corpus = {"data": "indexed", "data.path": short_documents, "data.split": "[9,1,0]"}
    whole, blurred = (run.beside(name) for name in ("whole", "blurred"))
    blurred.workers(1, *words(FAMILIES[family], corpus, {"trainer.max_samples": 4}))
    corpus["data.document_mask"] = "true"
    whole.workers(1, *words(FAMILIES[family], corpus))
    run.workers(processes, *words(FAMILIES[family], corpus, settings))
    assert_same_training(run, whole)
    assert abs(whole.rows[0]["loss"] - blurred.rows[0]["loss"]) > 1e-3


CHAINS = {
    "llama": {
        "fsdp2": 8,
        "8 = pp2 x fsdp2 x tp2": 16,
        "one": 28,
        "pp2": 36,
        "8 = hsdp2x2 x cp2": 44,
        "ddp2": 60,
    },
    "gpt": {"pp2": 8, "one": 16, "pp2 x tp2, gpt": 28, "fsdp2": 44},
}
"""By mesh: the sample at which the next one takes over. The batch size grows at sample 20."""


@pytest.mark.parametrize("family", CHAINS)
def test_a_run_resumes_on_any_other_mesh_in_the_middle_of_a_ramp(family, run):
    """Compares a run that changes its mesh every few steps with one that never does.

    Its averages are those of the weights that it saved after each step.
    """
    settled, ramp = {"schedule.decay_style": "constant"}, {"model.rampup_batch_size": "[4,4,18]"}
    settled |= {"average.ema": 150, "average.merge": "from:200"}
    settled |= {"checkpoint.every_steps": 1, "checkpoint.keep_last": 100}
    whole = run.beside("whole")
    longest = {"trainer.max_samples": max(CHAINS[family].values())}
    whole.workers(1, *words(FAMILIES[family], settled, ramp, longest))
    for mesh, end in CHAINS[family].items():
        _, processes, settings = MESHES.get(mesh, (family, 1, {}))
        run.workers(
            processes,
            *words(FAMILIES[family], settled, ramp, settings, {"trainer.max_samples": end}),
        )
        assert run.rows[-1]["world_size"] == processes
    assert_every_sample_is_read_once(run)
    assert run.rows[-1]["stage"] == 1
    for row, expected in zip(run.rows, whole.rows, strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert row["grad_norm"] == pytest.approx(expected["grad_norm"], rel=2e-4)
    expected = {
        EMA: averaged(run.directory, since_step=0, half_life_tokens=150),
        MERGE: merged(run.directory, first_token=200),
    }
    for kind, average in expected.items():
        assert_same_averages(run.directory, kind, average, rtol=1e-5, atol=1e-7)
    assert run.events_of("average") == []


def test_the_initial_weights_are_the_same_bit_for_bit_on_every_mesh(tmp_path):
    alone = run_ranks(1, hash_weights, logs=tmp_path)[0]
    split = run_ranks(8, hash_weights, logs=tmp_path)[0]
    assert len(split) == 6
    for (family, _), hashes in split.items():
        assert hashes == alone[family, (1, 1, 1)]


def test_a_rank_of_a_70b_model_never_holds_more_than_its_part(tmp_path):
    stop_ranks()  # peak memory is measured in a new process
    (part,) = run_ranks(1, build_part, 77, logs=tmp_path)
    stop_ranks()
    assert part["parameters"] == 70_553_706_496
    assert part["held"] == pytest.approx(part["parameters"] / 1024, rel=0.02)
    assert part["filled"]
    assert part["most_bytes"] < 1.5 * 4 * part["held"]


@pytest.mark.parametrize(
    ("family", "bf16", "mesh", "is_rounded"),
    [
        # Parameters are used in bf16; gradients are reduced, and weights kept, in fp32.
        ("llama", {"trainer.precision": "bf16"}, {CONTEXT: 2}, True),
        # The layers' projections are computed in bf16, everything else in fp32.
        ("gpt", {"trainer.matmul_precision": "medium"}, {TENSOR: 2}, has_bf16_products()),
    ],
)
def test_bf16_on_a_mesh_stays_near_bf16_alone_and_both_near_fp32(
    family, bf16, mesh, is_rounded, run, alone
):
    single = run.beside("single")
    single.workers(1, *words(FAMILIES[family], bf16))
    run.workers(2, *words(FAMILIES[family], bf16, mesh))
    split, one, fp32 = ([row["loss"] for row in each.rows] for each in (run, single, alone(family)))
    assert split == pytest.approx(one, abs=3e-3)
    assert one == pytest.approx(fp32, abs=2e-2)
    for losses in (one, split):
        difference = max(abs(ours - exact) for ours, exact in zip(losses, fp32, strict=True))
        assert (difference > 1e-5) == is_rounded


def test_a_run_and_its_export_to_transformers_start_the_same_run_on_any_mesh(run, alone, tmp_path):
    """GPT-2's tensors are fused and transposed: a rank reads some columns of a part of one."""
    export(alone("gpt").path, tmp_path / "theirs")
    from_run, from_theirs = (
        {"model.init_from": path, "trainer.max_samples": 8}
        for path in (alone("gpt").path, tmp_path / "theirs")
    )
    single = run.beside("single")
    single.workers(1, *words(FAMILIES["gpt"], from_run))
    run.workers(4, *words(FAMILIES["gpt"], from_theirs, {PIPELINE: 2, TENSOR: 2}))
    assert run.validations() == pytest.approx(single.validations(), abs=1e-5)
    assert single.validations()[0] == pytest.approx(alone("gpt").validations()[STEPS], abs=1e-6)
