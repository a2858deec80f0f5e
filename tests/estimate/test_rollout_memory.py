"""Rollouts add what they hold at the same time as training, or count alone if they hold more."""

from dataclasses import replace

import pytest

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.estimate.memory import MemoryEstimate
from rampcli.estimate.model_size import count_parameters
from rampcli.estimate.rollout_memory import cache_bytes, generating_bytes, with_rollout
from rampcli.planning.out_of_memory import rollout_out_of_memory
from rampcli.planning.resolve import resolve

TRAINING = MemoryEstimate(weights=100, gradients=100, optimizer=200, activations=50, moment="step")


def planned(*words: str):
    recipe = llm.from_factory("sort_digits")
    resolved = resolve(apply_overrides(recipe, ["rl=grpo", *words]))
    return resolved.config, resolved.pairs(resolved.plan.stages[0])


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
