"""A step on any mesh has the loss, the gradient, the noise and the norms of a step on one rank."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from once import make_once
from rampcli.data.corpus import IGNORED
from rampcli.data.loader import MicroBatch
from rampcli.estimate.layer_memory import gradient_bytes
from rampcli.parallel.mesh import DATA
from rampcli.runs.metrics import Metric
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig
from rampcli.train.group_norms import GroupNorms
from rampcli.train.observers.model_observer import Measurement, ModelInStep, ModelObserver
from rampcli.train.step import accumulate_gradient
from ranks import build_passes, joined, run_ranks, whole

EAGER = partial(torch.compile, backend="aot_eager")
"""Graphs that consist of the operations themselves. C++ for them would take ten seconds."""
PARTS = ("layers.0", "layers.1", "")


class Norms(ModelObserver):
    """Measures the norms of the gradients and of the weights of each layer and of the rest."""

    metrics = [  # noqa: RUF012
        Metric(f"{kind}_{index}", "", over_ranks="norm")
        for kind in ("gradient", "weight")
        for index in range(len(PARTS))
    ]

    def measure(self, model: ModelInStep) -> Mapping[str, Tensor]:
        found = {}
        for index, part in enumerate(PARTS):
            names = [
                name
                for name in model.weights
                if (name.startswith(part) if part else not name.startswith("layers."))
            ]
            if names:  # other ranks of a pipeline have the rest
                found[f"gradient_{index}"] = model.squared_norm(names, of_gradients=True)
                found[f"weight_{index}"] = model.squared_norm(names)
        return found


class Reductions(TorchDispatchMode):
    """Notes the bytes in fp32 that collectives reduce on this rank.

    Attributes:
        scattered: bytes of the gradients of all shards, for each reduce-scatter, which is an
            all-to-all on CPUs.
        all_reduced: for each all-reduce.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scattered: list[int] = []
        self.all_reduced: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:  # its operations on local tensors come here next
            return NotImplemented
        if func is torch.ops.c10d.alltoall_base_.default:
            self.scattered.append(args[1].nbytes)
        elif func is torch.ops.c10d.allreduce_.default and args[0][0].dtype == torch.float32:
            self.all_reduced.append(args[0][0].nbytes)
        return func(*args, **(kwargs or {}))


def take_step(
    parallel: dict[str, int],
    trainer: dict[str, object],
    micro_batch_size: int = 1,
    tied: bool = False,
) -> dict[str, Any]:
    """Takes a step as this rank, on initial weights.

    Args:
        parallel, trainer: settings of these sections.

    Returns:
        The fields of `StepResult`, and besides
        `gradients`: squared norm of the clipped gradient of each parameter of this rank's stages.
        `all_reduces`: number of all-reduces in fp32.
        `sent_bytes`: bytes of gradients that this rank sends if only data-parallel ranks share it.
        `counted_bytes`: those that a plan counts.
    """
    config = Config(
        model=ModelConfig(
            num_layers=2,
            hidden_size=32,
            ffn_hidden_size=48,
            num_query_groups=2,
            vocab_size=64,
            tie_embeddings=tied,
        )
    )
    config.data.sequence_length = 16
    for section, settings in (
        (config.parallel, parallel),
        (config.trainer, {"accumulate_reduce": "last", **trainer}),
    ):
        for key, value in settings.items():
            setattr(section, key, value)
    tokens, labels = (
        torch.randint(64, (8, 16), generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)
    )
    for sample in range(8):
        labels[sample, 16 - 2 * sample :] = IGNORED
    with joined(), patch.object(torch, "compile", EAGER):
        passes = build_passes(config)
        meshes = passes.meshes
        ranks = meshes.size(DATA)
        shares = [plane.chunk(ranks)[meshes.rank(DATA)] for plane in (tokens, labels)]
        mine = [share.split(micro_batch_size) for share in shares]
        with Reductions() as reductions:
            result = accumulate_gradient(
                passes,
                [MicroBatch(*parts) for parts in zip(*mine, strict=True)],
                global_tokens=int((labels != IGNORED).sum()),
                gradient_clip_val=0.1,
                norms=GroupNorms(passes.parts, meshes, pieces=passes.pieces),
                measure=partial(Measurement([Norms()], 1).addends, passes),
            ).wait()
        shards = config.parallel.data_parallel_shard_size or ranks
        replicas = ranks // shards
        # Rings of n ranks send (n - 1) / n of what they reduce and scatter, or twice that.
        sent = sum(reductions.scattered) * (shards - 1) // shards
        sent += 2 * sum(reductions.all_reduced) * (replicas - 1) // replicas
        reductions_of_plan = len(mine[0]) if config.trainer.accumulate_reduce == "each" else 1
        return {
            **asdict(result),
            "gradients": {
                name: whole(parameter.grad).double().square().sum().item()
                for part in passes.parts
                for name, parameter in part.stage_parameters().items()
            },
            "all_reduces": len(reductions.all_reduced),
            "sent_bytes": sent,
            "counted_bytes": gradient_bytes(
                config, data_parallel_size=ranks, reductions=reductions_of_plan
            ),
        }


SHARD, TENSOR, CONTEXT, PIPELINE, PIECES = (
    "data_parallel_shard_size",
    "tensor_parallel_size",
    "context_parallel_size",
    "pipeline_parallel_size",
    "num_pipeline_microbatches",
)
EACH = {"accumulate_reduce": "each"}
DATA_MESHES = {
    "replicas": (2, {SHARD: 1}, {}),
    "replicas, reduced after each micro batch": (2, {SHARD: 1}, EACH),
    "sharded": (2, {}, {}),
    "sharded, reduced after each micro batch": (2, {}, EACH),
    "sharded within replicas": (4, {SHARD: 2}, {}),
    "sharded within replicas, reduced after each micro batch": (4, {SHARD: 2}, EACH),
}
MESHES = {
    **DATA_MESHES,
    "tensor": (2, {TENSOR: 2}, {}),
    "tensor x sharded": (4, {TENSOR: 2}, EACH),
    "context": (2, {CONTEXT: 2}, {}),
    "pipeline": (2, {PIPELINE: 2}, {}),
    "compiled": (1, {}, {"compile": True}),
}
UNTIED_ONLY = ("pipeline", "compiled")
"""Meshes on which a check of settings refuses tied weights, or which are the same with them."""


@pytest.fixture(scope="session")
def steps(tmp_path_factory):
    """Returns a function of a mesh that returns the step of each of its ranks, taken once."""

    def of(name: str, *, tied: bool = False) -> list[dict]:
        ranks, parallel, trainer = MESHES.get(name, (1, {}, {}))

        def record(folder):
            found = run_ranks(ranks, take_step, parallel, trainer, 1, tied, logs=folder)
            (folder / "steps.json").write_text(json.dumps(found))

        folder = make_once(tmp_path_factory, f"step {name} {tied}", record)
        return json.loads((folder / "steps.json").read_text())

    return of


def names_of(*, tied: bool) -> list[str]:
    return [name for name in MESHES if not (tied and name in UNTIED_ONLY)]


@pytest.mark.parametrize("tied", [False, True])
def test_every_mesh_has_the_gradient_of_the_whole_batch(tied, steps):
    """A mean per rank or micro batch would weigh samples with few valid tokens too much."""
    (alone,) = steps("alone", tied=tied)
    for name in names_of(tied=tied):
        found = steps(name, tied=tied)
        assert {key for rank in found for key in rank["gradients"]} == alone["gradients"].keys()
        for rank in found:
            assert rank["loss"] == pytest.approx(alone["loss"], abs=1e-6), name
            assert rank["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-5), name
            expected = {key: alone["gradients"][key] for key in rank["gradients"]}
            assert rank["gradients"] == pytest.approx(expected, rel=1e-5), name


@pytest.mark.parametrize("tied", [False, True])
def test_every_mesh_measures_the_noise_that_one_rank_measures(tied, steps):
    """Ranks that hold the same weights or samples count them once, and addends are summed first."""
    (alone,) = steps("alone", tied=tied)
    for name in names_of(tied=tied):
        for rank in steps(name, tied=tied):
            assert rank["groups"] == pytest.approx(alone["groups"], rel=1e-5), name


@pytest.mark.parametrize("tied", [False, True])
def test_every_mesh_measures_the_norms_of_layers_that_one_rank_measures(tied, steps):
    """Observers see gradients before they are clipped."""
    (alone,) = steps("alone", tied=tied)
    assert len(alone["measured"]) == len(Norms.metrics)
    assert math.sqrt(sum(alone["measured"][: len(PARTS)])) == pytest.approx(alone["grad_norm"])
    for name in names_of(tied=tied):
        for rank in steps(name, tied=tied):
            assert rank["measured"] == pytest.approx(alone["measured"], rel=1e-5), name


def test_a_step_sends_the_bytes_of_gradients_that_a_plan_counts(steps):
    for name in DATA_MESHES:
        for rank in steps(name):
            assert rank["sent_bytes"] == rank["counted_bytes"] > 0, name


def test_replicas_all_reduce_once_per_step(steps):
    """Four micro batches of each rank, two layers, the embedding and the head."""
    for name in ("replicas", "replicas, reduced after each micro batch"):
        assert [rank["all_reduces"] for rank in steps(name)] == [4, 4]


@pytest.mark.parametrize(
    ("micro_batch_size", "mesh", "rel"),
    [
        # Pieces of a micro batch are the groups of a pipeline.
        (2, (2, {PIPELINE: 2, PIECES: 2}, {}, 4), 1e-5),
        # The only micro batch of a step is measured in two halves.
        (4, (1, {}, {}, 8), 1e-5),
        (4, (1, {}, {"compile": True}, 8), 1e-5),
        # bf16 rounds.
        (1, (2, {}, {"precision": "bf16"}, 1), 1e-2),
    ],
)
def test_groups_of_samples_have_the_noise_of_micro_batches(micro_batch_size, mesh, rel, tmp_path):
    (alone,) = run_ranks(1, take_step, {}, {}, micro_batch_size, logs=tmp_path)
    ranks, *arguments = mesh
    for found in run_ranks(ranks, take_step, *arguments, logs=tmp_path):
        assert found["groups"] == pytest.approx(alone["groups"], rel=rel)
        assert found["grad_norm"] == pytest.approx(alone["grad_norm"], rel=rel)
