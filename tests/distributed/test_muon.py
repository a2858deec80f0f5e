import pytest

from distributed.muon_steps import take_steps
from ranks import run_ranks

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
