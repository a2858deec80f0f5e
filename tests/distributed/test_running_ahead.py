"""On a GPU, a step starts before the numbers of the step before it are known."""

import pytest
import torch
from safetensors.torch import load_file

from rampcli.runs.manifest import complete_checkpoints
from ranks import run_ranks, train_rank

COMPUTED = ("step", "stage", "consumed_samples", "loss", "grad_norm", "lr", "order_hash")
WORDS = [
    "rampup.at_boundary=continue",
    "optim.skip_step_sigma=1.5",
    "schedule.decay_style=constant",
    "model.global_batch_size=4",
    "model.rampup_batch_size=[2,2,100]",
    "trainer.max_samples=240",
    "trainer.val_every_steps=7",
    "checkpoint.every_steps=15",
]


def train_ahead(run_dir: str) -> None:
    """Trains a run as this rank, with steps that overlap as on a GPU."""
    from rampcli.train.loop import Trainer

    run = Trainer.run

    def run_ahead(trainer: Trainer) -> str:
        trainer.runs_ahead = True
        return run(trainer)

    Trainer.run = run_ahead
    try:
        train_rank(run_dir)
    finally:
        Trainer.run = run


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_overlapping_steps_give_the_same_rows_events_and_weights(run, optimizer):
    other = run.beside("ahead")
    seen = []
    for each, train in ((run, train_rank), (other, train_ahead)):
        each.describe(*WORDS, f"optim.optimizer={optimizer}", "trainer.num_nodes=1")
        run_ranks(1, train, str(each.path), logs=each.directory.logs)
        rows = [[row[column] for column in COMPUTED] for row in each.rows]
        events = [
            (event["event"], event.get("step"), event.get("loss"), event.get("reason"))
            for event in each.events
            if event["event"] in ("stage", "skip", "validation", "stop")
        ]
        newest = complete_checkpoints(each.directory)[-1]
        tensors = {
            name: tensor
            for file in sorted(newest.path.glob("*.safetensors"))
            for name, tensor in load_file(file).items()
        }
        seen.append((rows, events, newest.manifest["recent"], tensors))
    (rows, events, recent, tensors), (*others, other_tensors) = seen
    assert others == [rows, events, recent]
    assert any(event == "skip" for event, *_ in events)
    assert tensors.keys() == other_tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, other_tensors[name]), name
