import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from zlib import crc32

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from rampcli.settings import optimizers
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig
from rampcli.settings.parallel import ParallelConfig
from rampcli.train import muon
from rampcli.train.optimizers import build_optimizers
from rampcli.train.step import update_weights
from ranks import build_passes, joined, run_ranks, whole

MODEL = ModelConfig(
    num_layers=4,
    hidden_size=24,
    ffn_hidden_size=40,
    num_attention_heads=4,
    num_query_groups=2,
    vocab_size=48,
)
STACKED = 2000
"""Elements of a stack: two of the largest matrices, so that a step takes several rounds."""


@dataclass
class Steps:
    """What the ranks of a mesh hold after some steps.

    Attributes:
        hashes: by name, of every whole matrix and of its momentum.
        orthogonalised: number of matrices that each rank orthogonalised in the first step.
        skipped: whether a harmful step changed neither.
    """

    hashes: dict[str, str] = field(default_factory=dict)
    orthogonalised: list[int] = field(default_factory=list)
    skipped: bool = True


def take_steps(meshes: list[dict[str, int]]) -> list[Steps]:
    """Returns the results on each mesh, which is named by its settings of `parallel`."""
    with joined():
        return [_steps_on(ParallelConfig(**sizes)) for sizes in meshes]


def _steps_on(parallel: ParallelConfig) -> Steps:
    config = Config(model=MODEL, parallel=parallel)
    config.data.sequence_length = 16
    config.optim.optimizer = "muon"
    parts = build_passes(config).parts
    built = build_optimizers(parts, config.optim)
    matrices = {
        name: weight
        for part in parts
        for name, weight in part.named_parameters()
        if name.startswith("layers.") and weight.ndim == 2
    }

    def take_step(number: int, *, is_harmful: bool = False) -> int:
        for name, weight in matrices.items():
            seed = torch.Generator().manual_seed(crc32(f"{name} {number}".encode()))
            gradient = torch.randn(weight.shape, generator=seed)
            weight.grad = _shard(gradient * (math.nan if is_harmful else 1), weight)
        with _counted() as shapes:
            update_weights(built, lr=0.01, skip=torch.tensor(is_harmful))
        return sum(shape[0] for shape in shapes)

    def hashes() -> dict[str, str]:
        momenta = {
            f"momentum of {name}": built[0].state[weight]["momentum_buffer"]
            for name, weight in matrices.items()
        }
        return {
            name: hashlib.sha256(whole(each).detach().numpy().tobytes()).hexdigest()
            for name, each in (matrices | momenta).items()
        }

    orthogonalised = take_step(1)
    take_step(2)
    found = Steps(hashes=hashes())
    take_step(3, is_harmful=True)
    found.skipped = hashes() == found.hashes
    everyones = [(found, orthogonalised)] * dist.get_world_size()
    dist.all_gather_object(everyones, (found, orthogonalised))
    merged = Steps()
    for one, count in everyones:
        assert all(
            merged.hashes.setdefault(name, each) == each for name, each in one.hashes.items()
        )
        merged.orthogonalised.append(count)
        merged.skipped &= one.skipped
    return merged


@contextmanager
def _counted() -> Iterator[list[torch.Size]]:
    """Yields the shapes of the stacks that this rank orthogonalises within the context."""
    shapes: list[torch.Size] = []
    orthogonalise = muon.orthogonalise

    def counted(matrices: Tensor, *, iterations: int) -> Tensor:
        shapes.append(matrices.shape)
        return orthogonalise(matrices, iterations=iterations)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(muon, "orthogonalise", counted)
        patch.setattr(optimizers, "MAX_STACK_ELEMENTS", STACKED)
        yield shapes


def _shard(tensor: Tensor, weight: nn.Parameter) -> Tensor:
    if isinstance(weight, DTensor):
        return distribute_tensor(tensor, weight.device_mesh, weight.placements, src_data_rank=None)
    return tensor


SHARD, TENSOR, PIPELINE = (
    f"{axis}_size" for axis in ("data_parallel_shard", "tensor_parallel", "pipeline_parallel")
)
MATRICES = 4 * 7
MESHES = {
    3: [{}],
    4: [{SHARD: 1}, {SHARD: 2}, {TENSOR: 2}],
    8: [{TENSOR: 2, SHARD: 2}, {PIPELINE: 2, TENSOR: 2}],
}
"""By number of ranks. Some ranks have shards without rows."""


@pytest.fixture(scope="module", params=MESHES)
def on_meshes(request, tmp_path_factory):
    logs = tmp_path_factory.mktemp("meshes")
    return run_ranks(request.param, take_steps, MESHES[request.param], logs=logs)[0]


def test_muon_takes_the_same_steps_bit_for_bit_on_every_mesh(on_meshes, tmp_path):
    (alone,) = run_ranks(1, take_steps, [{}], logs=tmp_path)[0]
    assert len(alone.hashes) == 2 * MATRICES
    for steps in on_meshes:
        assert steps.hashes == alone.hashes


def test_a_step_that_the_device_skips_changes_neither_matrices_nor_momentum(on_meshes):
    assert all(steps.skipped for steps in on_meshes)


def test_each_matrix_is_orthogonalised_by_one_rank_and_ranks_share_the_work(on_meshes):
    for steps in on_meshes:
        assert sum(steps.orthogonalised) == MATRICES
        assert max(steps.orthogonalised) - min(steps.orthogonalised) <= 2
