import pytest

from rampcli.launch.doctor.check import Status
from rampcli.launch.slurm.launcher import check_slurm


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("partition", "status"),
    [("null", Status.ok), ("urgent", Status.ok), ("nowhere", Status.failure)],
)
def test_a_partition_is_checked_against_the_cluster(tiny, partition, status):
    found = check_slurm(tiny(f"launch.slurm.partition={partition}"))
    assert found.status is status
    if status is Status.failure:
        assert found.remedy == "launch.slurm.partition=main or urgent"
