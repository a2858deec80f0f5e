import copy

import pytest

from rampcli.config import snapshot
from rampcli.config.compose import apply_overrides
from rampcli.config.layers import build_config
from rampcli.errors import UsageError, UsageErrors
from rampcli.estimate.model_size import flops_per_token
from rampcli.planning.config_plan import throughput_of
from rampcli.planning.resolve import resolve
from rampcli.planning.run_plan import run_plan


def test_a_snapshot_gives_the_same_plan(composed, tmp_path):
    words = ["data.global_batch_size=4096", "rampup.efficiency='1:9000 4:11500'"]
    resolved = resolve(apply_overrides(composed, words))
    (tmp_path / "config.yaml").write_text(snapshot.to_yaml(resolved.config), encoding="utf-8")
    again = run_plan(snapshot.read(tmp_path / "config.yaml"))
    assert (again.config, again.plan) == (resolved.config, resolved.plan)
    assert again.plan.to_json() == resolved.plan.to_json()


def test_planning_does_not_change_the_configuration(composed):
    config = resolve(composed).config
    before = copy.deepcopy(config)
    assert run_plan(config).config is config
    assert config == before


def test_an_error_in_a_worker_names_the_word_that_was_typed(composed, tmp_path):
    config = resolve(apply_overrides(composed, ["trainer.num_nodes=16"])).config
    (tmp_path / "config.yaml").write_text(
        snapshot.to_yaml(config).replace("micro_batch_size: 4", "micro_batch_size: 3"),
        encoding="utf-8",
    )
    with pytest.raises(UsageError) as refused:
        run_plan(snapshot.read(tmp_path / "config.yaml"))
    assert "trainer.num_nodes=16 (command line)" in str(refused.value)


def test_finished_stages_are_not_checked(composed):
    words = ["rampup.node_policy=fixed", "model.rampup_batch_size=[256,1792,10M]"]
    config = resolve(
        apply_overrides(composed, words), consumed_samples_in=lambda _: 10_000_128
    ).config
    assert len(run_plan(config, consumed_samples=10_000_128).plan.stages) == 1
    with pytest.raises(UsageError, match="stage 0"):
        run_plan(config)


def test_the_settings_reach_the_plan():
    config = build_config(
        {
            "model.global_batch_size": 64,
            "model.rampup_batch_size": [16, 16, 1000],
            "data.micro_batch_size": 2,
            "data.sequence_length": 50,
            "trainer.num_nodes": 4,
            "trainer.devices": 4,
            "trainer.max_tokens": 100_000,
            "parallel.tensor_parallel_size": 2,
            "rampup.node_policy": "fixed",
        },
        place="here",
    )
    plan = run_plan(config).plan
    assert [
        (
            stage.global_batch_size,
            stage.num_nodes,
            stage.data_parallel_size,
            stage.accumulate_grad_batches,
        )
        for stage in plan.stages
    ] == [
        (16, 4, 8, 1),
        (32, 4, 8, 2),
        (48, 4, 8, 3),
        (64, 4, 8, 4),
    ]
    assert plan.sequence_length == 50
    assert 2000 <= plan.end_sample < 2000 + 64


def test_throughput_comes_from_the_most_specific_setting(composed):
    def basis(*words):
        throughput = throughput_of(resolve(apply_overrides(composed, words)).config)
        if throughput is None:
            return None
        assert throughput.has_bubble is ("efficiency" in throughput.basis)
        return throughput.points, throughput.basis

    config = resolve(composed).config
    estimate = 0.4 * 989e12 / flops_per_token(config.model, sequence_length=2048)
    assert basis() == (
        {(1, 1): estimate},
        "an estimate from FLOPs, at 40% of 989 TFLOP/s per GPU, as declared",
    )
    assert basis("throughput.samples_per_s_per_gpu=2") == (
        {(1, 1): 4096.0},
        "2 samples/s per GPU, as declared",
    )
    points = {(1, 1): 9000.0, (1, 4): 11500.0}
    typed = "rampup.efficiency='4:11500 1:9000'"
    assert basis(typed, "throughput.samples_per_s_per_gpu=2") == (
        points,
        "rampup.efficiency (command line)",
    )
    assert basis("throughput.mfu=null") is None
    assert basis("trainer.peak_tflops=null") is None


def test_the_learning_rate_follows_the_settings(composed):
    words = [
        "optim.lr=0.5",
        "optim.min_lr=0.1",
        "optim.warmup_steps=10",
        "schedule.decay_style=linear",
        "trainer.max_steps=30",
    ]
    rate = (
        resolve(apply_overrides(composed, [*words, "model.rampup_batch_size=null"])).phases[0].rate
    )
    assert rate.at(2048, global_batch_size=2048) == pytest.approx(0.05)
    assert rate.at(10 * 2048, global_batch_size=2048) == pytest.approx(0.5)
    assert rate.at(20 * 2048, global_batch_size=2048) == pytest.approx(0.3)
    assert rate.at(30 * 2048, global_batch_size=2048) == pytest.approx(0.1)


def test_samples_to_load_in_a_maxtext_ramp_are_counted_over_all_devices(composed):
    words = {
        "per_device_batch_size": 2,
        "per_device_batch_size_start": 0.5,
        "per_device_batch_size_increment": 0.5,
    }
    given = [f"{word}={value}" for word, value in words.items()] + [
        "enable_rampup_batch_size=true",
        "global_rampup_samples=3000",
    ]
    more = [
        "trainer.num_nodes=1",
        "parallel.tensor_parallel_size=2",
        "expansion_factor_real_data=1",
    ]
    resolved = resolve(apply_overrides(composed, [*given, *more]))
    assert [resolved.phases[0].loading(stage)[0] for stage in resolved.plan.stages] == [
        8,
        8,
        12,
        16,
    ]


@pytest.mark.parametrize(
    ("factor", "load", "hosts"),
    [(2, 4096, 8), (4, 8192, 4), (0.5, 2048, 16), (1, 2048, 16)],
    ids=["2", "4", "half", "1"],
)
def test_the_expansion_factor_decides_how_many_samples_and_hosts_load(
    composed, factor, load, hosts
):
    resolved = resolve(
        apply_overrides(
            composed, [f"data.expansion_factor_real_data={factor}", "model.rampup_batch_size=null"]
        )
    )
    assert resolved.phases[0].loading(resolved.plan.stages[0]) == (load, hosts)


@pytest.mark.parametrize("factor", ["null", "-1", "0"])
def test_without_an_expansion_factor_every_host_reads_its_own_samples(composed, factor):
    resolved = resolve(apply_overrides(composed, [f"data.expansion_factor_real_data={factor}"]))
    assert resolved.phases[0].loading(resolved.plan.stages[0]) is None


def test_two_ends_are_refused_by_name_together_with_what_does_not_divide(planned):
    words = ("trainer.max_steps=4", "trainer.max_tokens=640", "model.rampup_batch_size=[4,5,24]")
    with pytest.raises(UsageErrors) as refusal:
        planned("llama3_tiny", *words)
    ends, ramp = refusal.value.errors
    assert ends.message == (
        "the length of the run is set more than once: trainer.max_steps=4 and"
        " trainer.max_tokens=640"
    )
    assert ends.keys == ("trainer.max_steps", "trainer.max_tokens")
    assert ramp.keys[0] == "model.rampup_batch_size"
    assert str(refusal.value) == "\n".join(str(error) for error in refusal.value.errors)
