import pytest

from rampcli.config import snapshot
from rampcli.config.layers import with_values
from rampcli.planning.choices import is_chosen_by_plan
from rampcli.planning.reduction import ways_to_reduce
from rampcli.planning.resolve import resolve
from rampcli.planning.stage_memory import GIB, usable_bytes
from rampcli.report.plan_notes import reduction_notes
from rampcli.settings.trainer import TrainerConfig

SMALL = "trainer.device_memory_gb=10"
RUN = ("llama3_8b", "trainer.num_nodes=1", "parallel.context_parallel_size=1")


def chosen(resolved) -> str:
    return resolved.config.trainer.accumulate_reduce


@pytest.mark.parametrize("memory_gb", range(20, 120, 7))
def test_each_is_chosen_exactly_where_last_does_not_fit_and_each_needs_less(planned, memory_gb):
    resolved = planned(*RUN, f"trainer.device_memory_gb={memory_gb}")
    ways = ways_to_reduce(resolved.phases[0])
    assert ways["each"].memory_bytes < ways["last"].memory_bytes
    fits = ways["last"].memory_bytes <= usable_bytes(resolved.config, memory_gb * GIB)
    assert chosen(resolved) == ("last" if fits else "each")
    assert bool(reduction_notes(resolved.phases[0])) is not fits


@pytest.mark.parametrize(
    "words",
    [
        "trainer.accelerator=cpu trainer.device_memory_gb=null",
        f"{SMALL} parallel.pipeline_parallel_size=8",
        f"{SMALL} trainer.devices=1",
        f"{SMALL} data.micro_batch_size=64",
        f"{SMALL} parallel.data_parallel_shard_size=1",
    ],
    ids=["unknown memory", "a pipeline", "one rank", "one micro batch", "whole weights"],
)
def test_last_stays_where_each_does_not_help(planned, words):
    assert chosen(planned(*RUN, *words.split())) == "last"


@pytest.mark.parametrize("value", ["last", "each"])
def test_a_value_that_is_set_stays(planned, value):
    for memory_gb in (10, 200):
        resolved = planned(
            *RUN,
            f"{TrainerConfig.accumulate_reduce}={value}",
            f"trainer.device_memory_gb={memory_gb}",
        )
        assert chosen(resolved) == value
        assert not is_chosen_by_plan(resolved.config, TrainerConfig.accumulate_reduce)
        assert reduction_notes(resolved.phases[0]) == []


def test_the_plan_chooses_anew_if_settings_change(planned):
    small = planned(*RUN, "trainer.device_memory_gb=44")
    large = resolve(with_values(small.config, {"trainer.device_memory_gb": 200.0}, "a test"))
    assert (chosen(small), chosen(large)) == ("each", "last")


def test_the_plan_chooses_anew_for_a_configuration_that_is_used_again(planned, tmp_path):
    file = tmp_path / "run.yaml"
    small = planned(*RUN, "trainer.device_memory_gb=44")
    file.write_text(snapshot.to_yaml(small.config))
    assert chosen(resolve(snapshot.read(file))) == "each"  # workers of the run
    again = planned(str(file), "trainer.device_memory_gb=200")
    assert chosen(again) == "last"
    assert is_chosen_by_plan(again.config, TrainerConfig.accumulate_reduce)


def test_each_sends_a_part_of_the_gradient_for_every_micro_batch(planned):
    resolved = planned(*RUN)
    (stage,) = resolved.plan.stages
    ways = ways_to_reduce(resolved.phases[0])
    assert ways["each"].sent_bytes == stage.accumulate_grad_batches * ways["last"].sent_bytes
