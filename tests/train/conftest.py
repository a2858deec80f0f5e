import signal

import pytest
import torch

from rampcli.runs.directory import RunDirectory
from rampcli.train.stopping import STOP_SIGNALS, StopRequest
from tiny_runs import TINY


@pytest.fixture
def stop():
    """A stop request that listens to the signals of this process."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    stop = StopRequest()
    stop.listen()
    yield stop
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def build_trainer(alone, planned, stop, tmp_path):  # noqa: ARG001
    """Builds the trainer of a tiny run on one rank in this process, and returns it with the run."""
    # Imported here, so that other tests do not wait for it.
    from rampcli.launch.run import write_run_files
    from rampcli.train.observers.boundary import BoundaryCosts
    from rampcli.worker.assemble import build_trainer

    def build(settings):
        settings = TINY | {
            "model.rampup_batch_size": "null",
            "trainer.num_nodes": "1",
            "trainer.devices": "1",
            "trainer.val_samples": "0",
            "run_dir": tmp_path / "run",
            **settings,
        }
        words = [f"{key}={value}" for key, value in settings.items()]
        resolved = planned("llama3_tiny", *words)
        run = RunDirectory(resolved.run_dir)
        write_run_files(run, resolved, [])
        costs = BoundaryCosts(run=run, started=0.0, imported=0.0)
        device, (phase, *_) = torch.device("cpu"), resolved.phases
        return build_trainer(resolved, phase, run, device, stop, costs), run

    return build
