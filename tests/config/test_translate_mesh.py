"""How MaxText's words for the axes of parallelism are translated into our keys."""

import pytest

from rampcli.config.compose import apply_overrides, compose
from rampcli.config.translate import translate
from rampcli.errors import UsageError, set_to
from rampcli.settings.by_key import leaves
from tests.config.overrides import refusal_of, resolved_with

TENSOR, SHARD = "parallel.tensor_parallel_size", "parallel.data_parallel_shard_size"


def translated(config, *typed):
    stack, _ = translate(apply_overrides(config, typed))
    return stack


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        (
            ["ici_tensor_parallelism=2", "dcn_pipeline_parallelism=2"],
            ["parallel.tensor_parallel_size=2", "parallel.pipeline_parallel_size=2"],
        ),
        (["ici_fsdp_parallelism=8", "dcn_data_parallelism=-1"], [f"{SHARD}=8"]),
        (
            ["ici_context_parallelism=2", "ici_fsdp_parallelism=8", "dcn_fsdp_parallelism=2"],
            ["parallel.context_parallel_size=2", f"{SHARD}=16"],
        ),
        (["ici_fsdp_parallelism=-1"], []),
    ],
    ids=lambda words: " ".join(words),
)
def test_maxtexts_words_for_a_mesh_equal_canonical_keys(composed, typed, ours):
    same_nodes = ["enable_rampup_batch_size=false"]
    assert dict(leaves(resolved_with(composed, *typed, *same_nodes).config)) == dict(
        leaves(resolved_with(composed, *ours, *same_nodes).config)
    )


def test_a_size_names_every_word_that_decides_it(composed):
    stack = translated(composed, "ici_tensor_parallelism=2", "dcn_tensor_parallelism=4")
    entry = stack.entry(TENSOR)
    words = ("ici_tensor_parallelism=2 (command line)", "dcn_tensor_parallelism=4 (command line)")
    assert (entry.value, entry.by) == (8, "dcn_tensor_parallelism")
    assert entry.sources(TENSOR) == words
    assert entry.place == ", ".join(words)


@pytest.mark.parametrize(
    ("typed", "remedy"),
    [
        (["ici_tensor_parallelism=5"], "ici_tensor_parallelism=4"),
        (
            ["dcn_tensor_parallelism=5", "ici_tensor_parallelism=1"],
            "dcn_tensor_parallelism=4",
        ),
        (["ici_tensor_parallelism=5", "dcn_tensor_parallelism=1"], "ici_tensor_parallelism=4"),
        (
            ["ici_tensor_parallelism=5", "dcn_tensor_parallelism=3"],
            "another ici_tensor_parallelism",
        ),
    ],
)
def test_a_remedy_uses_a_word_that_alone_decides_a_size(composed, typed, remedy):
    error = UsageError("x", keys=(TENSOR,), remedy=set_to(TENSOR, 4))
    translated(composed, *typed).name_sources(error)
    assert error.remedy == remedy


def test_samples_per_device_are_counted_on_the_ranks_of_the_mesh(composed):
    words = ("per_device_batch_size=2", "enable_rampup_batch_size=false")
    stage = resolved_with(composed, "ici_tensor_parallelism=4", *words).plan.stages[0]
    assert (stage.global_batch_size, stage.micro_batch_size) == (256, 8)


def test_the_nearest_of_a_word_and_a_canonical_key_wins():
    spelt, ours = compose("ici_tensor_parallelism=4"), compose(f"{TENSOR}=2")
    assert translated(spelt).entry(TENSOR).value == 4
    assert translated(spelt, f"{TENSOR}=2").entry(TENSOR).value == 2
    assert translated(ours, "ici_tensor_parallelism=4").entry(TENSOR).value == 4
    shards = compose("ici_fsdp_parallelism=2", "trainer.num_nodes=4")
    assert translated(shards).entry(SHARD).value == 2
    assert translated(shards, f"{SHARD}=null").entry(SHARD).value is None


@pytest.mark.parametrize("key", [TENSOR, "model.tensor_model_parallel_size"])
def test_a_word_and_a_key_of_equal_precedence_must_agree(composed, key):
    word = "ici_tensor_parallelism=2"
    assert translated(composed, word, f"{key}=2").entry(TENSOR).value == 2
    refusal = refusal_of(apply_overrides(composed, [word, f"{key}=4"]))
    assert refusal.keys == ("ici_tensor_parallelism", TENSOR)
    assert refusal.set_by == (f"{word} (command line)", f"{key}=4 (command line)")


def test_a_mesh_that_cannot_be_translated_is_the_only_error(composed):
    refusal = refusal_of(apply_overrides(composed, ["ici_tensor_parallelism=0"]))
    assert refusal.keys == ("ici_tensor_parallelism",)
