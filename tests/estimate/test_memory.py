from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.estimate import memory
from rampcli.estimate.memory import (
    MEMORY_KINDS,
    MemoryEstimate,
    cache_bytes,
    estimate_memory,
    generating_bytes,
    with_rollout,
)
from rampcli.estimate.model_size import checkpoint_bytes, count_parameters
from rampcli.planning.out_of_memory import rollout_out_of_memory
from rampcli.planning.resolve import resolve
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig

GIB = 2**30
LAYOUTS = st.fixed_dictionaries(
    {
        "tensor_parallel_size": st.sampled_from([1, 2]),
        "pipeline_parallel_size": st.sampled_from([1, 2, 4]),
        "context_parallel_size": st.sampled_from([1, 2]),
        "virtual_pipeline_parallel_size": st.sampled_from([1, 2]),
    }
)


def estimate(config: Config, *, ranks: int = 8, micro: int = 1, accumulate: int = 4):
    return estimate_memory(
        config,
        data_parallel_size=ranks,
        micro_batch_size=micro,
        accumulate_grad_batches=accumulate,
    )


@st.composite
def configs(draw):
    config = Config(
        model=ModelConfig(num_layers=16, num_query_groups=draw(st.sampled_from([None, 2])))
    )
    for key, size in draw(LAYOUTS).items():
        setattr(config.parallel, key, size)
    if config.parallel.pipeline_parallel_size == 1:
        config.parallel.virtual_pipeline_parallel_size = 1
    config.trainer.precision = draw(st.sampled_from(["fp32", "bf16"]))
    config.trainer.accelerator = draw(st.sampled_from(["cpu", "gpu"]))
    config.trainer.accumulate_reduce = draw(st.sampled_from(["last", "each"]))
    config.trainer.activation_checkpointing = draw(st.sampled_from(["none", "selective", "full"]))
    config.optim.optimizer = draw(st.sampled_from(["adamw", "muon"]))
    config.data.document_mask = draw(st.booleans())
    return config


@given(config=configs(), micro=st.integers(1, 8), accumulate=st.integers(1, 8))
def test_a_larger_micro_batch_never_needs_less(config, micro, accumulate):
    smaller, larger = (
        estimate(config, micro=samples, accumulate=accumulate).peak_bytes
        for samples in (micro, micro + 1)
    )
    assert smaller <= larger


@given(config=configs(), micro=st.integers(1, 8), accumulate=st.integers(2, 8))
def test_a_step_of_several_micro_batches_needs_at_least_what_a_step_of_one_needs(
    config, micro, accumulate
):
    config.parallel.pipeline_parallel_size = config.parallel.virtual_pipeline_parallel_size = 1
    one, several = (
        estimate(config, micro=micro, accumulate=count).peak_bytes for count in (1, accumulate)
    )
    assert one <= several


@given(config=configs(), accumulate=st.integers(1, 8))
def test_each_kind_of_memory_is_at_least_nothing_and_they_sum_to_the_peak(config, accumulate):
    kinds = estimate(config, accumulate=accumulate).by_kind()
    assert min(kinds.values()) >= 0
    assert sum(kinds.values()) == estimate(config, accumulate=accumulate).peak_bytes
    assert tuple(kinds) == MEMORY_KINDS


@given(config=configs(), accumulate=st.integers(1, 8))
def test_recomputing_more_activations_never_needs_more(config, accumulate):
    peaks = []
    for config.trainer.activation_checkpointing in ("full", "selective", "none"):
        peaks.append(estimate(config, micro=4, accumulate=accumulate).peak_bytes)
    assert peaks == sorted(peaks)


@given(config=configs(), ranks=st.sampled_from([2, 4]), rounds=st.integers(4, 500))
def test_the_micro_batches_of_a_step_do_not_fill_the_memory_of_a_pipeline(config, ranks, rounds):
    config.parallel.pipeline_parallel_size = ranks
    assert estimate(config, accumulate=rounds * ranks) == estimate(config, accumulate=4 * ranks)


@given(config=configs(), accumulate=st.integers(1, 600), micro=st.sampled_from([1, 10_000]))
def test_the_smallest_and_the_largest_models_have_an_estimate(config, accumulate, micro):
    for size, sequence in ((2, 4), (1_000_000, 16_000_000)):
        config.model.hidden_size = config.model.num_attention_heads = size
        config.model.ffn_hidden_size = config.model.vocab_size = size
        config.model.num_query_groups = None
        config.data.sequence_length = sequence
        assert estimate(config, micro=micro, accumulate=accumulate).peak_bytes > 0


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("recipe", ["llama3_8b", "qwen3_0p6b", "gpt3_5b", "mistral_7b"])
def test_one_rank_holds_the_weights_and_states_of_a_checkpoint(recipe, optimizer):
    config = getattr(llm, recipe).pretrain_recipe()
    config.parallel = replace(Config().parallel)
    config.optim.optimizer = optimizer
    config.data.sequence_length = 1024
    found = memory.RankMemory(config, 0, data_ranks=1, samples=1, micro_batches=1)
    alone, weights = found.at_rest(), memory.FP32 * found.weights.whole
    assert weights + alone.optimizer == checkpoint_bytes(config)
    config.average.ema = 1000
    assert found.at_rest() == replace(alone, weights=alone.weights + weights)
    assert 2 * weights + alone.optimizer == checkpoint_bytes(config)
    config.average.merge = "from:10B"
    assert 3 * weights + alone.optimizer == checkpoint_bytes(config)


def test_llama3_8b_is_near_what_torchtitan_publishes():
    """77 to 82 GiB reserved on 8 H100s (torchtitan's benchmarks, 2 x 8192 tokens per GPU)."""
    config = llm.llama3_8b.pretrain_recipe()
    config.parallel.context_parallel_size = 1
    config.trainer.activation_checkpointing = "selective"
    peak = estimate(config, ranks=8, micro=2, accumulate=1).peak_bytes
    assert 0.8 * 77 * GIB < peak < 82 * GIB


TRAINING = MemoryEstimate(weights=100, gradients=100, optimizer=200, activations=50, moment="step")


def planned(*words: str):
    recipe = llm.from_factory("sort_digits")
    resolved = resolve(apply_overrides(recipe, ["rl=grpo", *words]))
    return resolved.config, resolved.phases[0].pairs(resolved.plan.stages[0])


def test_a_split_model_has_a_whole_copy_that_generates():
    config, batch = planned("trainer.devices=2", "rl.micro_batch_size=16")
    parameters = count_parameters(config.model, sequence_length=config.data.sequence_length)
    found = with_rollout(TRAINING, config, batch)
    assert found.weights == TRAINING.weights + 4 * parameters


def test_the_starting_weights_are_sharded_as_the_model_is():
    config, batch = planned("rl.kl_weight=0.1", "model.init_from=run", "rl.micro_batch_size=16")
    config.rl.rollout_ranks = 1
    found = with_rollout(TRAINING, config, batch)
    parameters = count_parameters(config.model, sequence_length=config.data.sequence_length)
    assert found == replace(TRAINING, weights=TRAINING.weights + 4 * parameters)


@pytest.mark.parametrize(("micro", "prompts"), [("null", 32), ("64", 4)])
def test_the_cache_of_a_rollout_counts_each_prompt_once_and_the_responses_of_its_pairs(
    micro, prompts
):
    config, batch = planned(f"rl.micro_batch_size={micro}")
    found = with_rollout(TRAINING, config, batch)
    # fp32 keys and values of 4 layers and 2 groups of 32. Of 18 tokens, 9 are the response.
    tokens = prompts * 9 + prompts * 16 * 9
    assert found.activations == cache_bytes(config, prompts) == 4 * 2 * 4 * 2 * 32 * tokens
    assert (found.moment, found.gradients) == ("rollout", 0)


@pytest.mark.parametrize(
    ("words", "per_logit"),
    [
        ([], 4 + 20),
        (["rl.top_k=3"], 4 + 32),
        (["rl.top_p=0.9"], 4 + 40),
        (["rl.top_k=3", "rl.top_p=0.9"], 4 + 32),
    ],
)
def test_a_rollout_counts_logits_and_drawing_from_them(words, per_logit):
    config, batch = planned("rl.micro_batch_size=64", *words)
    drawing = per_logit * 4 * 16 * config.model.vocab_size
    found = with_rollout(replace(TRAINING, weights=0), config, batch)
    assert (found.moment, found.logits) == ("rollout", drawing)
    parameters = count_parameters(config.model, sequence_length=config.data.sequence_length)
    assert generating_bytes(config, 4) == 4 * parameters + cache_bytes(config, 4) + drawing


@pytest.mark.parametrize(
    ("words", "smaller"),
    [
        (["rl.micro_batch_size=64"], ["rl.micro_batch_size=32"]),
        (["rl.micro_batch_size=null"], ["rl.micro_batch_size=256"]),
        (["trainer.accelerator=cpu", "trainer.device_memory_gb=0.005"], ["rl.micro_batch_size=64"]),
        (["rl.micro_batch_size=16"], []),
        (["rl.micro_batch_size=4", "rl.split_groups=true"], []),
    ],
)
def test_a_rollout_out_of_memory_names_the_largest_that_fits_and_is_smaller(words, smaller):
    words += ["trainer.devices=2", "rl.rollout_ranks=1"]
    resolved = resolve(apply_overrides(llm.from_factory("sort_digits"), ["rl=grpo", *words]))
    error = rollout_out_of_memory(resolved, consumed_samples=0, reason="rank 1 is out of memory")
    assert error.remedy.split(", or ") == [*smaller, "rl.max_response_tokens=4 in a new run"]
