from unittest.mock import patch

import pytest

from gpu_rehearsal.gpu_runs import gpu_environment
from ranks import start_process
from slurm.conftest import cluster, running_cluster  # noqa: F401


@pytest.fixture(autouse=True, scope="session")
def _forks_have_gpus():
    """Lets ranks and commands be forked from a process that has the GPUs."""
    with patch.dict("os.environ", gpu_environment()):
        start_process(int).join()  # the first call of all starts that process
