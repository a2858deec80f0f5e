"""Batches of RL in the words of other systems, read back by those systems' own formulas."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.batch.pairs import PairBatch, PairSettings
from rampcli.batch.plan import BatchPlan
from rampcli.words import REFUSED
from rampcli.words.rl import (
    BARE_WORDS,
    expand_words,
    translate_pairs,
)

TEMPERATURE, RESPONSE_TOKENS = 0.123456789, 77


@st.composite
def batches(draw):
    """Batches of pairs, whose micro batches are whole groups or, more rarely, parts of one."""
    generations, ranks = draw(st.integers(2, 6)), draw(st.integers(1, 4))
    settings = PairSettings(
        generations=generations,
        micro_batch_size=draw(st.integers(1, 3)) * generations
        if draw(st.booleans())
        else draw(st.sampled_from([n for n in range(1, generations) if generations % n == 0])),
        updates=draw(st.integers(1, 3)),
        splits_groups=True,
    )
    together = settings.prompts_per_micro_batch
    passes = settings.updates * draw(st.integers(1, 3))
    prompts = passes * together * ranks
    return PairBatch.of(
        BatchPlan.divide(prompts, micro_batch_size=together, data_parallel_size=ranks), settings
    )


def said(batch, system, num_stages=1):
    return translate_pairs(
        batch,
        num_stages=num_stages,
        temperature=TEMPERATURE,
        max_response_tokens=RESPONSE_TOKENS,
    )[system]


def arguments(translation):
    """Returns the values of `name=value` or `--name value` words, by name."""
    words = shlex.split(str(translation))
    pairs = (
        zip(words[::2], words[1::2], strict=True)
        if words[0].startswith("--")
        else (word.split("=") for word in words)
    )
    return {name.lstrip("-"): value for name, value in pairs}


def numbers(translation):
    return {name: int(text) for name, text in arguments(translation).items() if "." not in text}


def trained_by_trl(words, ranks):
    """TRL counts completions, and a group of them is a prompt (`GRPOConfig.__post_init__`)."""
    per_update = words["per_device_train_batch_size"] * ranks * words["gradient_accumulation_steps"]
    generation_batch_size = (
        words["per_device_train_batch_size"] * ranks * words["steps_per_generation"]
    )
    assert generation_batch_size % (words["per_device_train_batch_size"] * ranks) == 0
    assert generation_batch_size % words["num_generations"] == 0
    return (
        generation_batch_size // words["num_generations"],
        words["num_generations"],
        generation_batch_size,
        words["num_iterations"] * generation_batch_size // per_update,
        words["gradient_accumulation_steps"],
    )


def trained_by_verl(words, ranks):
    """verl's batch and mini batch count prompts, its micro batch the responses of a rank."""
    prompts, generations = words["data.train_batch_size"], words["actor_rollout_ref.rollout.n"]
    mini = words["actor_rollout_ref.actor.ppo_mini_batch_size"] * generations
    micro = words["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"]
    pairs = prompts * generations
    assert pairs % ranks == 0
    assert mini % ranks == 0
    assert mini // ranks % micro == 0
    return prompts, generations, pairs, pairs // mini, mini // ranks // micro


def trained_by_nemo_rl(words, ranks):
    """NeMo-RL's steps count prompts, its training batches samples."""
    prompts = words["grpo.num_prompts_per_step"]
    generations = words["grpo.num_generations_per_prompt"]
    batch, micro = words["policy.train_global_batch_size"], words["policy.train_micro_batch_size"]
    assert prompts * generations % ranks == 0
    assert batch % (micro * ranks) == 0
    pairs = prompts * generations
    return prompts, generations, pairs, pairs // batch, batch // (micro * ranks)


def trained_by_maxtext(words, _):
    """Tunix counts prompts of all devices, and MaxText sets its mini batch to the whole batch."""
    prompts, generations = words["batch_size"], words["rl.num_generations"]
    mini, micro = prompts, words["train_micro_batch_size"]
    micro = mini if micro == -1 else micro
    assert mini % micro == 0
    return prompts, generations, prompts * generations, prompts // mini, mini // micro


TRAINED = {
    "TRL": trained_by_trl,
    "verl": trained_by_verl,
    "NeMo-RL": trained_by_nemo_rl,
    "MaxText": trained_by_maxtext,
}
TEMPERATURES = {
    "TRL": "temperature",
    "verl": "actor_rollout_ref.rollout.temperature",
    "NeMo-RL": "policy.generation.temperature",
    "MaxText": "decode_sampling_temperature",
}


@pytest.mark.parametrize("system", TRAINED)
@given(batch=batches())
def test_the_words_of_a_system_mean_the_same_batch_there(system, batch):
    translation = said(batch, system)
    if system == "MaxText":
        # What it cannot do, it says.
        pairs = batch.micro_batch_size * batch.data_parallel_size
        unsaid = (pairs % batch.generations != 0) + (batch.updates > 1)
        assert len(translation.unsaid) == unsaid
        if unsaid:
            return
    trained = TRAINED[system](numbers(translation), batch.data_parallel_size)
    assert trained == (
        batch.prompts,
        batch.generations,
        batch.pairs,
        batch.updates,
        batch.accumulation,
    )
    assert float(arguments(translation)[TEMPERATURES[system]]) == TEMPERATURE


@given(batch=batches())
def test_a_micro_batch_that_maxtext_cannot_have_still_divides_its_batch(batch):
    words = numbers(said(batch, "MaxText"))
    assert words["train_micro_batch_size"] == -1 or (
        words["batch_size"] % words["train_micro_batch_size"] == 0
    )


@pytest.mark.parametrize("system", TRAINED)
def test_a_ramp_is_named_as_a_difference(system):
    batch = PairBatch(
        prompts=8,
        generations=4,
        updates=1,
        accumulation=2,
        micro_batch_size=16,
        data_parallel_size=1,
        rollouts=2,
    )
    one, several = said(batch, system), said(batch, system, num_stages=3)
    assert several.words == one.words
    assert len(several.unsaid) == len(one.unsaid) + 1


def test_bare_words_are_the_keys_of_rl_and_minus_one_takes_all_pairs():
    words = ["batch_size=8", "num_generations=4", "micro_batch_size=-1", "rl=grpo", "seed=-1", "x"]
    assert expand_words(words) == [
        "rl.prompts_per_step=8",
        "rl.generations_per_prompt=4",
        "rl.micro_batch_size=null",
        "rl=grpo",
        "seed=-1",
        "x",
    ]
    assert expand_words(["batch_size=-1"]) == ["rl.prompts_per_step=-1"]
    assert REFUSED.keys() >= BARE_WORDS.keys()
