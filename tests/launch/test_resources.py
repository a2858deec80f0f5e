import pytest

from rampcli import llm
from rampcli.config.choices import Accelerator
from rampcli.config.resolve import resolve
from rampcli.errors import UsageError
from rampcli.launch.resources import gpus_for, visible_gpus


@pytest.mark.parametrize(("variable", "gpus"), [("0,1,2", ["0", "1", "2"]), ("", []), ("GPU-ab12", ["GPU-ab12"])])
def test_the_gpus_are_those_that_the_environment_leaves(monkeypatch, variable, gpus):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert visible_gpus() == gpus


@pytest.mark.parametrize(
    ("accelerator", "variable", "used"),
    [("auto", "3,5,7", ["3", "5"]), ("auto", "3", []), ("cpu", "3,5", []), ("gpu", "3,5", ["3", "5"])],
)
def test_a_run_takes_the_gpus_of_its_largest_stage_or_none(monkeypatch, accelerator, variable, used):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    config = llm.llama3_tiny.pretrain_recipe()
    config.trainer.accelerator = Accelerator(accelerator)
    resolved = resolve(config)
    assert gpus_for(resolved.config, resolved.plan) == used


def test_a_run_that_wants_more_gpus_than_there_are_says_how_many(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    resolved = resolve(llm.gpt3_5b.pretrain_recipe())
    with pytest.raises(UsageError, match=r"needs 128 GPUs \(16 nodes of 8\), and this machine has 1"):
        gpus_for(resolved.config, resolved.plan)
