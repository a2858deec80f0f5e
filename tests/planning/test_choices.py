import pytest

from rampcli.config import snapshot
from rampcli.config.layers import stack_of, with_values
from rampcli.planning import choices
from rampcli.planning.choices import compilation_of, is_chosen_by_plan, ways_to_reduce
from rampcli.planning.resolve import resolve
from rampcli.planning.stage_memory import GIB, usable_bytes
from rampcli.report.plan_notes import compilation_lines, reduction_notes
from rampcli.settings.trainer import TrainerConfig

RUN = ("llama3_tiny", "trainer.accelerator=cpu", "throughput.samples_per_s_per_gpu=1")


@pytest.mark.parametrize("samples", [160, 300, 500, 2_000, 100_000])
def test_layers_are_compiled_exactly_where_they_save_more_than_compiling_takes(planned, samples):
    resolved = planned(*RUN, "trainer.num_nodes=1", f"trainer.max_samples={samples}")
    costs = compilation_of(resolved.phases[0])
    restarts_s = resolved.plan.restarts() * resolved.plan.clock.restart_s
    assert costs.run_s == resolved.plan.run_s() - restarts_s
    pays = costs.saved_s > costs.compile_s
    assert resolved.config.trainer.compile is pays is (samples > 400)
    assert bool(compilation_lines(resolved.phases[0])) is pays


def test_a_run_without_an_end_is_compiled(planned):
    words = ("model.rampup_batch_size=null", "trainer.max_samples=null")
    assert planned(*RUN, *words).config.trainer.compile is True


def test_each_start_of_processes_takes_time(planned):
    once = compilation_of(
        planned(*RUN, "trainer.num_nodes=1", "rampup.at_boundary=continue").phases[0]
    )
    again = compilation_of(
        planned(*RUN, "trainer.num_nodes=1", "rampup.at_boundary=restart").phases[0]
    )
    assert again.compile_s == once.compile_s + 3 * choices.ON_CPU.start_s


def test_without_a_throughput_the_operations_tell_the_time(planned, monkeypatch):
    words = ("llama3_tiny", "trainer.num_nodes=1", "trainer.accelerator=cpu")
    monkeypatch.setattr(choices, "processors", lambda: 1)
    one = compilation_of(planned(*words).phases[0]).run_s
    monkeypatch.setattr(choices, "processors", lambda: 8)
    assert compilation_of(planned(*words).phases[0]).run_s == pytest.approx(one / 8)
    twice = compilation_of(planned(*words, "trainer.max_samples=6_408").phases[0])
    assert twice.run_s == pytest.approx(2 * one / 8, rel=0.01)  # the last batches are whole
    on_gpu = planned(*words[:2], "trainer.accelerator=gpu", "trainer.peak_tflops=50")
    assert compilation_of(on_gpu.phases[0]).run_s == pytest.approx(one * 0.03 / (0.4 * 50))


@pytest.mark.parametrize("words", ["sort_digits rl=sort_digits", "shakespeare_char data.path=x"])
def test_the_plan_never_compiles_where_it_cannot_tell(planned, words):
    name, *rest = words.split()
    resolved = planned(name, *rest)
    assert compilation_of(resolved.phases[0]) is None
    assert resolved.config.trainer.compile is False


@pytest.mark.parametrize("value", [True, False])
def test_a_value_that_is_set_stays(planned, value):
    for samples in (160, 100_000):
        words = (f"{TrainerConfig.compile}={str(value).lower()}", f"trainer.max_samples={samples}")
        resolved = planned(*RUN, *words)
        assert resolved.config.trainer.compile is value
        assert not is_chosen_by_plan(resolved.config, TrainerConfig.compile)
        assert compilation_lines(resolved.phases[0]) == []


def test_auto_is_a_word_for_null(planned):
    resolved = planned(*RUN, f"{TrainerConfig.compile}=auto", "trainer.max_samples=100_000")
    assert is_chosen_by_plan(resolved.config, TrainerConfig.compile)
    assert resolved.config.trainer.compile is True


def test_the_plan_chooses_anew_for_a_configuration_that_is_used_again(planned, tmp_path):
    file = tmp_path / "run.yaml"
    long = planned(*RUN, "trainer.max_samples=100_000")
    file.write_text(snapshot.to_yaml(long.config))
    assert resolve(snapshot.read(file)).config.trainer.compile is True  # workers of the run
    assert planned(str(file), "trainer.max_samples=160").config.trainer.compile is False


def test_the_progress_of_a_run_changes_nothing(planned):
    words = (*RUN, "trainer.max_samples=2_000")
    resolved = resolve(stack_of(planned(*words).config), consumed_samples_in=lambda _: 1_900)
    assert compilation_of(resolved.phases[0]) == compilation_of(planned(*words).phases[0])
    assert resolved.config.trainer.compile is True


SMALL = "trainer.device_memory_gb=10"
ONE_NODE = ("llama3_8b", "trainer.num_nodes=1", "parallel.context_parallel_size=1")


def chosen(resolved) -> str:
    return resolved.config.trainer.accumulate_reduce


@pytest.mark.parametrize("memory_gb", range(20, 120, 7))
def test_each_is_chosen_exactly_where_last_does_not_fit_and_each_needs_less(planned, memory_gb):
    resolved = planned(*ONE_NODE, f"trainer.device_memory_gb={memory_gb}")
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
    assert chosen(planned(*ONE_NODE, *words.split())) == "last"


@pytest.mark.parametrize("value", ["last", "each"])
def test_a_reduction_that_is_set_stays(planned, value):
    for memory_gb in (10, 200):
        resolved = planned(
            *ONE_NODE,
            f"{TrainerConfig.accumulate_reduce}={value}",
            f"trainer.device_memory_gb={memory_gb}",
        )
        assert chosen(resolved) == value
        assert not is_chosen_by_plan(resolved.config, TrainerConfig.accumulate_reduce)
        assert reduction_notes(resolved.phases[0]) == []


def test_the_reduction_is_chosen_anew_if_settings_change(planned):
    small = planned(*ONE_NODE, "trainer.device_memory_gb=44")
    large = resolve(with_values(small.config, {"trainer.device_memory_gb": 200.0}, "a test"))
    assert (chosen(small), chosen(large)) == ("each", "last")


def test_the_reduction_is_chosen_anew_for_a_configuration_that_is_used_again(planned, tmp_path):
    file = tmp_path / "run.yaml"
    small = planned(*ONE_NODE, "trainer.device_memory_gb=44")
    file.write_text(snapshot.to_yaml(small.config))
    assert chosen(resolve(snapshot.read(file))) == "each"  # workers of the run
    again = planned(str(file), "trainer.device_memory_gb=200")
    assert chosen(again) == "last"
    assert is_chosen_by_plan(again.config, TrainerConfig.accumulate_reduce)


def test_each_sends_a_part_of_the_gradient_for_every_micro_batch(planned):
    resolved = planned(*ONE_NODE)
    (stage,) = resolved.plan.stages
    ways = ways_to_reduce(resolved.phases[0])
    assert ways["each"].sent_bytes == stage.accumulate_grad_batches * ways["last"].sent_bytes
