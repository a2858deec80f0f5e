"""Compares the recipes with the numbers that their sources publish."""

from typing import NamedTuple

import pytest
import torch

from rampcli import llm
from rampcli.estimate.model_size import count_parameters
from rampcli.models.decoder import Decoder
from rampcli.planning.resolve import resolve

PARAMETERS = {
    # Hugging Face, safetensors of meta-llama, mistralai and Qwen; tied embeddings count once.
    "llama2_7b": 6_738_415_616,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "llama31_405b": 405_853_388_800,
    "llama32_1b": 1_235_814_400,
    "llama32_3b": 3_212_749_824,
    "mistral_7b": 7_241_732_096,
    "qwen3_0p6b": 596_049_920,
    "qwen3_1p7b": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
    "qwen3_14b": 14_768_307_200,
    "qwen3_32b": 32_762_123_264,
    # NeMo-Framework-Launcher's shapes, with GPT-2's vocabulary padded to 50304 tokens and 2048
    # learned positions.
    "gpt3_126m": 125_262_336,
    "gpt3_5b": 5_047_558_144,
    "gpt3_20b": 20_256_509_952,
    "gpt3_175b": 174_604_836_864,
}


class Uncounted(NamedTuple):
    """Settings of a model that do not change the number of its parameters."""

    norm_epsilon: float
    rotary_base: float
    rotary_scale_factor: float | None
    sliding_window: int | None
    head_size: int
    init_std: float


UNCOUNTED = {
    # config.json at Hugging Face; init_std from
    # nemo/collections/llm/gpt/model/{llama,mistral,qwen2}.py.
    "llama2_7b": Uncounted(1e-5, 1e4, None, None, 128, 0.02),
    "llama3_8b": Uncounted(1e-5, 5e5, None, None, 128, 0.01),
    "llama3_70b": Uncounted(1e-5, 5e5, None, None, 128, 0.008944),
    "llama31_405b": Uncounted(1e-5, 5e5, 8, None, 128, 0.02),
    "llama32_1b": Uncounted(1e-5, 5e5, 32, None, 64, 0.02),
    "llama32_3b": Uncounted(1e-5, 5e5, 32, None, 128, 0.02),
    "mistral_7b": Uncounted(1e-5, 1e4, None, 4096, 128, 0.02),
    "qwen3_0p6b": Uncounted(1e-6, 1e6, None, None, 128, 0.02),
    "qwen3_1p7b": Uncounted(1e-6, 1e6, None, None, 128, 0.02),
    "qwen3_4b": Uncounted(1e-6, 1e6, None, None, 128, 0.02),
    "qwen3_8b": Uncounted(1e-6, 1e6, None, None, 128, 0.02),
    "qwen3_14b": Uncounted(1e-6, 1e6, None, None, 128, 0.02),
    "qwen3_32b": Uncounted(1e-6, 1e6, None, None, 128, 0.02),
}

GPT3_INIT_STD = {
    "gpt3_126m": 0.023,
    "gpt3_5b": 0.01,
    "gpt3_20b": 0.008165,
    "gpt3_175b": 0.006,
}  # init_method_std of NeMo-Framework-Launcher


class Training(NamedTuple):
    """The batch, length and learning rate with which a source trains a model."""

    global_batch_size: int
    sequence_length: int
    micro_batch_size: int
    max_steps: int
    lr: float
    min_lr: float
    warmup_steps: int


# nemo/collections/llm/recipes/llama3*.py
NEMO_LLAMA = Training(512, 8192, 1, 1_168_251, 3e-4, 3e-5, 2000)
# nemo/collections/llm/recipes/qwen3_*.py
NEMO_QWEN3 = Training(32, 4096, 2, 300_000, 3e-4, 3e-5, 500)

TRAINING = {
    # nemo/collections/llm/recipes/llama2_7b.py
    "llama2_7b": NEMO_LLAMA._replace(sequence_length=4096),
    "llama3_8b": NEMO_LLAMA,
    "llama3_70b": NEMO_LLAMA,
    "llama31_405b": NEMO_LLAMA,
    "llama32_1b": NEMO_LLAMA,
    "llama32_3b": NEMO_LLAMA,
    # mistral_7b.py there, except that it ends after 100 steps
    "mistral_7b": NEMO_LLAMA._replace(sequence_length=4096),
    "qwen3_0p6b": NEMO_QWEN3,
    "qwen3_1p7b": NEMO_QWEN3,
    "qwen3_4b": NEMO_QWEN3,
    "qwen3_8b": NEMO_QWEN3,
    "qwen3_14b": NEMO_QWEN3,
    "qwen3_32b": NEMO_QWEN3,
    # NeMo-Framework-Launcher, launcher_scripts/conf/training/gpt3/*.yaml
    "gpt3_126m": Training(256, 2048, 4, 600_000, 6e-4, 6e-5, 636),
    "gpt3_5b": Training(2048, 2048, 4, 75_000, 1.6e-4, 1.6e-5, 115),
    "gpt3_20b": Training(2048, 2048, 2, 75_000, 1.4e-4, 1.4e-5, 115),
    "gpt3_175b": Training(2048, 2048, 1, 75_000, 0.9e-4, 0.9e-5, 115),
}


class Split(NamedTuple):
    """The parallel sizes with which a source splits a model, and its number of nodes of 8 GPUs."""

    num_nodes: int
    tensor: int = 1
    pipeline: int = 1
    virtual_pipeline: int = 1
    context: int = 1


SPLITS = {
    # The trainer() of nemo/collections/llm/recipes/*.py
    "llama2_7b": Split(1, tensor=2),
    "llama3_8b": Split(1, context=2),
    "llama3_70b": Split(4, tensor=4, pipeline=4, virtual_pipeline=5, context=2),
    # The first version of its recipe, without the 2 parts per pipeline rank, which 512 samples do
    # not fill.
    "llama31_405b": Split(72, tensor=8, pipeline=9, context=4),
    "llama32_1b": Split(1),
    "llama32_3b": Split(1),
    "mistral_7b": Split(1, context=2),
    "qwen3_0p6b": Split(1),
    "qwen3_1p7b": Split(1),
    "qwen3_4b": Split(1, tensor=2),
    "qwen3_8b": Split(1, tensor=4),
    "qwen3_14b": Split(1, tensor=8),
    "qwen3_32b": Split(2, tensor=8, pipeline=2),
    # NeMo-Framework-Launcher, launcher_scripts/conf/training/gpt3/*.yaml
    "gpt3_126m": Split(8),
    "gpt3_5b": Split(16),
    "gpt3_20b": Split(64, tensor=2),
    "gpt3_175b": Split(128, tensor=4, pipeline=8, virtual_pipeline=6),
}


@pytest.fixture(scope="module")
def resolved():
    return {name: resolve(getattr(llm, name).pretrain_recipe()) for name in PARAMETERS}


def test_every_table_covers_every_recipe_of_a_published_model():
    own = {"fine_tune", "llama3_tiny", "shakespeare_char", "sort_digits"}
    published = set(llm.recipe_names()) - own
    assert published == set(PARAMETERS) == set(TRAINING) == set(SPLITS)
    assert set(UNCOUNTED) | set(GPT3_INIT_STD) == published


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_a_recipe_has_the_published_number_of_parameters_counted_and_built(
    resolved, name, parameters
):
    config = resolved[name].config
    assert count_parameters(config.model, sequence_length=config.data.sequence_length) == parameters
    with torch.device("meta"):
        model = Decoder(config.model, sequence_length=config.data.sequence_length)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize(("name", "uncounted"), UNCOUNTED.items())
def test_settings_that_parameter_counts_do_not_show_are_as_published(resolved, name, uncounted):
    model = resolved[name].config.model
    assert (
        Uncounted(
            model.norm_epsilon,
            model.rotary_base,
            model.rotary_scale_factor,
            model.sliding_window,
            model.head_width,
            model.init_std,
        )
        == uncounted
    )
    assert (
        model.rotary_low_freq_factor,
        model.rotary_high_freq_factor,
        model.rotary_original_length,
    ) == (1, 4, 8192)


@pytest.mark.parametrize(("name", "init_std"), GPT3_INIT_STD.items())
def test_a_larger_gpt3_starts_with_smaller_weights_as_in_the_source(resolved, name, init_std):
    assert resolved[name].config.model.init_std == init_std


@pytest.mark.parametrize("name", PARAMETERS)
def test_queries_and_keys_are_normalised_only_in_qwen3(resolved, name):
    assert resolved[name].config.model.qk_norm == name.startswith("qwen3_")


@pytest.mark.parametrize(("name", "training"), TRAINING.items())
def test_batch_size_sequence_length_and_learning_rate_are_as_published(resolved, name, training):
    config = resolved[name].config
    batch = (
        config.model.global_batch_size,
        config.data.sequence_length,
        config.data.micro_batch_size,
        config.trainer.max_steps,
    )
    assert (
        Training(*batch, config.optim.lr, config.optim.min_lr, config.optim.warmup_steps)
        == training
    )


@pytest.mark.parametrize(("name", "split"), SPLITS.items())
def test_the_parallel_sizes_are_as_published(resolved, name, split):
    config = resolved[name].config
    parallel = config.parallel
    sizes = (
        parallel.tensor_parallel_size,
        parallel.pipeline_parallel_size,
        parallel.virtual_pipeline_parallel_size,
    )
    assert Split(config.trainer.num_nodes, *sizes, parallel.context_parallel_size) == split


@pytest.mark.parametrize(("name", "split"), SPLITS.items())
def test_the_parallel_sizes_divide_the_model_and_occupy_every_process(resolved, name, split):
    config, plan = resolved[name].config, resolved[name].plan
    model = config.model
    groups = model.key_heads
    for size in (
        model.num_attention_heads,
        groups,
        model.ffn_hidden_size,
        model.vocab_size,
        model.hidden_size,
    ):
        assert size % split.tensor == 0
    assert model.num_layers % (split.pipeline * split.virtual_pipeline) == 0
    assert config.data.sequence_length % (2 * split.context * split.tensor) == 0
    for stage in plan.stages:
        copy = split.tensor * split.pipeline * split.context
        assert stage.data_parallel_size * copy == stage.world_size == stage.num_nodes * 8
        batch = stage.data_parallel_size * stage.micro_batch_size * stage.accumulate_grad_batches
        assert batch == stage.global_batch_size
        assert split.virtual_pipeline == 1 or stage.accumulate_grad_batches % split.pipeline == 0
    assert plan.stages[-1].num_nodes == split.num_nodes
