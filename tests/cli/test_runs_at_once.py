from types import SimpleNamespace

import pytest

from rampcli import llm
from rampcli.cli.runs_at_once import check_at_once
from rampcli.config.compose import apply_overrides
from rampcli.errors import UsageError
from rampcli.planning.resolve import resolve

ON_TWO_GPUS = ("trainer.accelerator=auto", "trainer.num_nodes=2", "trainer.devices=1")


def runs_of(count, *words, complete=0):
    """Returns runs of two processes each, the first of which are complete."""
    config = apply_overrides(llm.from_factory("llama3_tiny"), [*ON_TWO_GPUS, *words])
    resolved = resolve(config)
    return [
        SimpleNamespace(resolved=resolved, is_complete=number < complete) for number in range(count)
    ]


@pytest.mark.parametrize(
    ("gpus", "at_once", "complete", "remedy"),
    [
        ("0,1,2,3", 2, 0, None),
        ("0,1,2,3", 3, 0, "--at-once 2"),
        ("0,1,2", 2, 0, "--at-once 1"),
        ("0,1,2,3", 9, 1, None),  # two are left
        ("", 3, 0, None),  # they train on the CPU
    ],
)
def test_each_run_at_once_needs_gpus_of_its_own(monkeypatch, gpus, at_once, complete, remedy):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    runs = runs_of(3, complete=complete)
    check_at_once(runs, at_once, starts=False)
    if remedy is None:
        check_at_once(runs, at_once, starts=True)
        return
    with pytest.raises(UsageError) as raised:
        check_at_once(runs, at_once, starts=True)
    assert raised.value.remedy == remedy
    check_at_once(runs, int(remedy.split()[1]), starts=True)


def test_jobs_are_left_to_their_queue():
    runs = runs_of(2, "launch=slurm")
    check_at_once(runs, 1, starts=False)
    with pytest.raises(UsageError, match="launch=slurm are jobs"):
        check_at_once(runs, 2, starts=False)
