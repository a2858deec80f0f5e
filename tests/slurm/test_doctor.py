import pytest

from rampcli.launch.checkup import Status, check_up

pytestmark = pytest.mark.xdist_group("slurm")


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("partition", "status"),
    [("null", Status.ok), ("urgent", Status.ok), ("nowhere", Status.failure)],
)
def test_a_partition_is_looked_for_on_the_cluster(tiny, partition, status):
    checks = check_up(tiny(f"launch.slurm.partition={partition}", "launch.slurm.python=null"))
    (slurm,) = [check for check in checks if check.name == "slurm"]
    assert slurm.status is status
    if status is Status.failure:
        assert slurm.remedy == "launch.slurm.partition=main or urgent"
