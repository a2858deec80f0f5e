"""Settings of reinforcement learning that contradict others are refused, with what works."""

import pytest

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.errors import UsageError, set_to
from rampcli.estimate.memory import estimate_memory, with_rollout
from rampcli.planning.config_plan import throughput_of
from rampcli.planning.out_of_memory import (
    changes_that_fit,
    out_of_memory,
    rollout_out_of_memory,
)
from rampcli.planning.resolve import resolve
from rampcli.planning.stage_memory import stage_memory
from rampcli.settings.rl import max_response_tokens
from tests.prompts import PROMPT_WORDS

RL = ("rl=grpo", *PROMPT_WORDS)


@pytest.fixture(scope="module")
def tiny():
    return llm.llama3_tiny.pretrain_recipe()


@pytest.fixture(scope="module")
def settled(tiny):
    """Resolves the smallest recipe with some words."""
    return lambda *words: resolve(apply_overrides(tiny, words))


def test_a_number_of_generations_that_is_out_of_range_is_the_only_error(settled):
    with pytest.raises(UsageError) as refused:
        settled(*RL, "rl.generations_per_prompt=1", "rl.temperature=2")
    assert refused.value.keys == ("rl.generations_per_prompt",)


def test_a_recipe_over_a_pipeline_gets_one_error_and_no_schedule_of_its_own_samples():
    with pytest.raises(UsageError) as refused:
        resolve(apply_overrides(llm.gpt3_175b.pretrain_recipe(), RL))
    assert refused.value.keys == ("parallel.pipeline_parallel_size",)
    decaying = llm.shakespeare_char.pretrain_recipe()
    assert decaying.schedule.wsd_decay_samples is not None
    rate = resolve(apply_overrides(decaying, RL)).phases[0].rate
    assert rate.at(0, global_batch_size=32) == rate.peak


def test_a_response_takes_half_of_the_sequence_unless_it_is_given(settled):
    assert max_response_tokens(settled(*RL, "data.sequence_length=64").config) == 32
    assert max_response_tokens(settled(*RL, "rl.max_response_tokens=7").config) == 7


def test_a_warm_up_that_does_not_end_is_counted_in_prompts(settled):
    notes = settled(*RL, "trainer.max_steps=2", "optim.warmup_steps=3").notes
    assert any("after 64 prompts, within its warm-up of 96" in note for note in notes)


def test_the_learning_rate_of_a_run_follows_its_prompts_whatever_the_length_of_a_phase(settled):
    words = (*RL, "rl.prompts_per_step=8", "trainer.max_samples=96", "trainer.max_steps=null")
    rate = ("schedule.decay_style=cosine", "optim.warmup_samples=24", "optim.warmup_steps=null")
    coupling = ("schedule.batch_coupling=sqrt", "phases.long.rl.prompts_per_step=4")
    phases = ("phases.short.until=samples:40", "phases.long.data.sequence_length=256")
    alone, parts = settled(*words, *rate), settled(*words, *rate, *phases)
    for consumed in range(8, 97, 8):
        found = [one.trained_by(consumed).rate for one in (alone, parts)]
        assert len({one.at(consumed, global_batch_size=8) for one in found}) == 1
    coupled = settled(*words, *rate, *phases, *coupling)
    assert coupled.phases[1].rate.factor_at(44, global_batch_size=4) == 0.5**0.5


def test_an_end_of_a_phase_in_tokens_is_offered_in_prompts_after_its_beginning(settled):
    words = (*RL, "rl.prompts_per_step=8", "trainer.max_steps=null", "phases.a.until=steps:4")
    for typed, offered in (("20", 33), ("1000", "1000")):
        with pytest.raises(UsageError, match="reinforcement learning counts prompts") as refused:
            settled(*words, f"phases.b.until={typed}")
        (remedy,) = refused.value.remedies
        assert str(remedy) == f"phases.b.until=samples:{offered}"
        assert settled(*words, str(remedy)).plan.end_sample > 32


def test_memory_that_a_phase_lacks_is_offered_in_smaller_groups_of_the_phase(settled):
    words = (*RL, "rl.prompts_per_step=6", "phases.a.until=steps:2", "phases.b.until=steps:4")
    of_phase = ("phases.b.rl.generations_per_prompt=4", "phases.b.rl.micro_batch_size=24")
    resolved = settled(*words, *of_phase, "trainer.num_nodes=1", "trainer.max_steps=null")
    stage = resolved.plan.stages[-1]
    asked = {"consumed_samples": stage.first_sample, "reason": "rank 0 ran out of memory"}
    training, rollout = (one(resolved, **asked) for one in (out_of_memory, rollout_out_of_memory))
    half = "phases.b.rl.micro_batch_size=12"
    assert [str(one) for one in training.remedies[:2]] == [
        half,
        "phases.b.trainer.activation_checkpointing=full",
    ]
    assert [str(one) for one in rollout.remedies] == [
        half,
        "phases.b.rl.max_response_tokens=32 in a new run",
    ]
    changed = settled(*words, of_phase[0], "trainer.num_nodes=1", "trainer.max_steps=null", half)
    assert stage_memory(changed.phases[1], changed.plan.stages[-1]).peak_bytes < (
        stage_memory(resolved.phases[1], stage).peak_bytes
    )
    single = settled(*words, *of_phase[:1], "phases.b.rl.micro_batch_size=4", "trainer.num_nodes=1")
    assert str(out_of_memory(single, **asked).remedies[0]) == (
        "phases.b.rl.micro_batch_size=2 phases.b.rl.split_groups=true"
    )


def test_flops_do_not_time_a_run_that_generates(settled):
    timed = ("trainer.peak_tflops=100", "throughput.mfu=0.4")
    assert throughput_of(settled(*timed).config) is not None
    assert throughput_of(settled(*RL, *timed).config) is None
    declared = settled(*RL, *timed, "throughput.samples_per_s_per_gpu=2")
    assert declared.plan.stage_s(declared.plan.stages[0]) == 100 * 32 / (2 * 2)


def test_a_ramp_of_prompts_resumes_in_the_stage_of_its_prompts(tiny):
    words = (*RL, "rl.prompts_per_step=24", "model.rampup_batch_size=[8,8,800]")
    fresh = resolve(apply_overrides(tiny, words))
    assert [stage.global_batch_size for stage in fresh.plan.stages] == [8, 16, 24]
    for stage in fresh.plan.stages:
        for consumed in (stage.first_sample, stage.first_sample + stage.global_batch_size):
            resumed = resolve(
                apply_overrides(tiny, words),
                consumed_samples_in={fresh.run_dir: consumed}.__getitem__,
            )
            found = resumed.plan.stage_at(consumed)
            assert found == stage
            assert resumed.phases[0].pairs(found) == fresh.phases[0].pairs(stage)


def test_stages_of_prompts_before_the_checkpoint_are_not_checked(tiny):
    words = (
        *RL,
        "rl.prompts_per_step=8",
        "model.rampup_batch_size=[1,7,100]",
        "rampup.node_policy=fixed",
        "trainer.max_steps=200",
    )
    with pytest.raises(UsageError, match=r"batch 1 \(stage 0\)"):
        resolve(apply_overrides(tiny, words))
    resumed = resolve(apply_overrides(tiny, words), consumed_samples_in=lambda _: 100)
    assert [stage.global_batch_size for stage in resumed.plan.stages] == [8]


@pytest.mark.parametrize("micro", ["null", "64"])
def test_less_memory_is_found_in_micro_batches_of_pairs(micro, settled):
    resolved = settled(*RL, f"rl.micro_batch_size={micro}")
    stage = resolved.plan.stages[0]
    most = stage_memory(resolved.phases[0], stage).peak_bytes - 1
    half = set_to("rl.micro_batch_size", resolved.phases[0].pairs(stage).micro_batch_size // 2)
    changes = changes_that_fit(resolved.phases[0], most)
    assert [one for one in changes if "rl.micro_batch_size" in one.values] == [half]


def test_memory_is_estimated_for_the_passes_over_parts_of_groups(settled):
    parts = settled(*RL, "rl.prompts_per_step=2", "rl.micro_batch_size=4", "rl.split_groups=true")
    (stage,) = parts.plan.stages
    assert (stage.accumulate_grad_batches, parts.phases[0].passes(stage)) == (1, (4, 4))
    once, four_times = (
        estimate_memory(
            parts.config, data_parallel_size=2, micro_batch_size=4, accumulate_grad_batches=passes
        )
        for passes in (1, 4)
    )
    assert four_times != once
    assert stage_memory(parts.phases[0], stage) == with_rollout(
        four_times, parts.config, parts.phases[0].pairs(stage)
    )


def test_parts_of_groups_need_less_memory_than_whole_ones(settled):
    groups, parts = (
        settled(*RL, f"rl.micro_batch_size={size}", "rl.split_groups=true") for size in (16, 4)
    )
    (stage,) = parts.plan.stages
    most = stage_memory(parts.phases[0], stage).peak_bytes
    assert stage_memory(groups.phases[0], stage).peak_bytes > most
    assert changes_that_fit(groups.phases[0], most)[0].values["rl.micro_batch_size"] == (4,)
