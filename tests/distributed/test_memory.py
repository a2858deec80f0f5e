from dataclasses import replace
from typing import Any

import pytest

from distributed.step_memory import forward_rests, step_peaks, tracked_peak
from models.families import GPT
from rampcli.estimate.memory import estimate_memory
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig
from ranks import run_ranks

LLAMA = ModelConfig(
    num_layers=3,
    hidden_size=128,
    ffn_hidden_size=352,
    num_attention_heads=4,
    num_query_groups=2,
    vocab_size=512,
)
MODELS = {
    "llama": LLAMA,
    "gpt": replace(
        LLAMA,
        **GPT,
        num_query_groups=None,
        ffn_hidden_size=512,
    ),
    "mistral": replace(LLAMA, sliding_window=32),
    "qwen3": replace(LLAMA, qk_norm=True, head_size=48, tie_embeddings=True),
    "wide llama": replace(LLAMA, num_layers=2, hidden_size=256, ffn_hidden_size=768),
    "llama with many words": replace(LLAMA, num_layers=2, vocab_size=8192),
}
"""Activations fill most of the memory of some, weights and states or logits that of others."""
BF16, SELECTIVE, FULL = (
    {"precision": "bf16"},
    {"activation_checkpointing": "selective"},
    {"activation_checkpointing": "full"},
)
MUON: dict[str, Any] = {"optimizer": "muon"}
EMA: dict[str, Any] = {"ema": 1000}
EACH = {"accumulate_reduce": "each"}
DOCUMENTS = {"document_mask": True}
PIPELINE = {"pipeline_parallel_size": 2}
INTERLEAVED = PIPELINE | {"virtual_pipeline_parallel_size": 2}
TWO_SIZES = ((1, 1), (4, 1))
"""Micro batch sizes and numbers of micro batches. Two sizes test the slope."""
ACCUMULATED = ((1, 2), (4, 2))
SETTINGS = {
    1: [
        ("llama", {}, (*TWO_SIZES, (2, 3))),
        ("llama", SELECTIVE | BF16 | DOCUMENTS, TWO_SIZES),
        ("gpt", BF16, TWO_SIZES),
        ("mistral", FULL, TWO_SIZES),
        ("qwen3", SELECTIVE, TWO_SIZES),
        ("wide llama", MUON, TWO_SIZES),
        ("wide llama", EMA, ((1, 1),)),
        ("wide llama", BF16 | FULL, ACCUMULATED),
        ("llama with many words", BF16 | FULL, TWO_SIZES),
    ],
    2: [
        ("llama", {}, TWO_SIZES),
        ("llama", BF16 | SELECTIVE, ACCUMULATED),
        ("llama", BF16 | FULL | MUON, TWO_SIZES),
        ("wide llama", FULL | MUON | {"data_parallel_shard_size": 1}, ((1, 1),)),
        ("wide llama", BF16 | EACH, ACCUMULATED),
        ("llama with many words", BF16 | FULL, TWO_SIZES),
        ("llama", EACH | {"data_parallel_shard_size": 1}, ACCUMULATED),
        ("llama with many words", FULL | {"data_parallel_shard_size": 1}, TWO_SIZES),
        ("wide llama", EMA | FULL, ((1, 1),)),
        ("gpt", {"tensor_parallel_size": 2}, TWO_SIZES),
        ("llama with many words", FULL | {"tensor_parallel_size": 2, "z_weight": 0.1}, TWO_SIZES),
        ("qwen3", BF16 | SELECTIVE | {"tensor_parallel_size": 2}, ((4, 1),)),
        ("llama", FULL | MUON | {"tensor_parallel_size": 2}, ((1, 1),)),
        ("mistral", {"context_parallel_size": 2}, TWO_SIZES),
        ("gpt", BF16 | FULL | DOCUMENTS | {"context_parallel_size": 2}, TWO_SIZES),
        ("llama", PIPELINE, ((1, 1), (2, 3))),
        ("gpt", BF16 | PIPELINE | {"num_pipeline_microbatches": 2}, ((4, 1),)),
        ("llama", SELECTIVE | INTERLEAVED, ((1, 2), (2, 4), (2, 8))),
    ],
    4: [
        ("llama", BF16 | SELECTIVE, TWO_SIZES),
        ("llama", FULL | {"data_parallel_shard_size": 2}, ((1, 1), (4, 3))),
        ("wide llama", EACH | {"data_parallel_shard_size": 2}, ((1, 3), (4, 3))),
        ("wide llama", FULL | MUON | {"data_parallel_shard_size": 2}, ((1, 1),)),
        ("llama", {"tensor_parallel_size": 2}, ((4, 1),)),
        ("llama", PIPELINE, ((2, 3),)),
    ],
}
"""By the number of ranks."""


def configured(model: str, options: dict[str, Any]) -> Config:
    config = Config(model=replace(MODELS[model]))
    if "pipeline_parallel_size" in options:
        config.model.num_layers = 4
    config.trainer.accelerator = "cpu"
    for key, value in options.items():
        (section,) = (
            each
            for each in (
                config.trainer,
                config.parallel,
                config.optim,
                config.data,
                config.average,
                config.loss,
            )
            if hasattr(each, key)
        )
        setattr(section, key, value)
    return config


def estimated(config: Config, *, ranks: int, batch: tuple[int, int]) -> int:
    parallel, (micro_batch_size, micro_batches) = config.parallel, batch
    ranks_per_sample = (
        parallel.tensor_parallel_size
        * parallel.pipeline_parallel_size
        * parallel.context_parallel_size
    )
    return estimate_memory(
        config,
        data_parallel_size=ranks // ranks_per_sample,
        micro_batch_size=micro_batch_size,
        accumulate_grad_batches=micro_batches,
    ).peak_bytes


@pytest.mark.parametrize("ranks", SETTINGS)
def test_an_estimate_is_within_a_tenth_of_the_fullest_rank_of_a_real_step(ranks, tmp_path):
    configs = [configured(model, options) for model, options, _ in SETTINGS[ranks]]
    batches = [each for _, _, each in SETTINGS[ranks]]
    counted = run_ranks(ranks, step_peaks, list(zip(configs, batches, strict=True)), logs=tmp_path)
    for index, config in enumerate(configs):
        real = [max(peaks) for peaks in zip(*(rank[index] for rank in counted), strict=True)]
        estimates = [estimated(config, ranks=ranks, batch=batch) for batch in batches[index]]
        assert estimates == pytest.approx(real, rel=0.1), SETTINGS[ranks][index]
        if len({micro_batches for _, micro_batches in batches[index]}) == 1:
            growth, real_growth = (each[-1] - each[0] for each in (estimates, real))
            assert growth == pytest.approx(real_growth, abs=0.05 * max(real)), SETTINGS[ranks][
                index
            ]


@pytest.mark.parametrize("peaks", [step_peaks, forward_rests])
def test_a_pipelines_memory_does_not_grow_with_its_micro_batches(peaks, tmp_path):
    configs = [configured("llama", options) for options in (PIPELINE, INTERLEAVED)]
    batches = ((2, 4), (2, 16))
    counted = run_ranks(2, peaks, [(config, batches) for config in configs], logs=tmp_path)
    hidden_states = 2 * configs[0].data.sequence_length * LLAMA.hidden_size * 4
    for few, many in (sizes for rank in counted for sizes in rank):
        assert many - few < (16 - 4) * hidden_states / 2


# Threads of gloo free the tensors of a collective at once or a little later: up to 4 %.
COLLECTIVES = 0.04


def trackable(model: str, options: dict[str, Any]) -> Config:
    """Torch's tracker does not know modules that FSDP gathers together, as untied heads are."""
    config = configured(model, options)
    config.model.tie_embeddings = True
    return config


@pytest.mark.parametrize(
    ("ranks", "options", "tolerance"),
    [(1, {}, 0.001), (2, {"tensor_parallel_size": 2}, COLLECTIVES)],
)
def test_the_census_agrees_with_torchs_trackers(ranks, options, tolerance, tmp_path):
    config = trackable("llama", options)
    tracked = run_ranks(ranks, tracked_peak, config, 2, logs=tmp_path)[0]
    counted = run_ranks(ranks, step_peaks, [(config, [(2, 1)])], logs=tmp_path)[0][0][0]
    assert counted == pytest.approx(tracked, rel=tolerance)
