"""Estimates what reinforcement learning adds to the memory of a rank."""

from dataclasses import replace

from rampcli.batch.pairs import PairBatch
from rampcli.estimate.layer_memory import needs_fsdp
from rampcli.estimate.memory import MemoryEstimate
from rampcli.estimate.model_size import count_parameters
from rampcli.models.parts import FP32, NUMBER_BYTES, layer_parts
from rampcli.settings.config import Config
from rampcli.settings.rl import max_response_tokens

DRAW_BYTES, TOP_K_BYTES, TOP_P_BYTES = 20, 32, 40
"""Bytes per logit that `rampcli.models.sampler` needs to draw: from all tokens, with top-k, or with
top-p alone, which sorts all weights. They hold weights in fp32 and sums in fp64. Measured on a CPU.
"""


def with_rollout(estimate: MemoryEstimate, config: Config, batch: PairBatch) -> MemoryEstimate:
    """Returns the larger of two estimates: the peak in training, and the peak while generating.

    Args:
        estimate: of training on micro batches of `batch`.
    """
    parameters = count_parameters(config.model, sequence_length=config.data.sequence_length)
    ranks_of_data = batch.data_parallel_size
    number = NUMBER_BYTES[config.trainer.precision]
    # A model that FSDP2 holds has a whole copy that generates, see `rampcli.rl.sources.Policy`.
    weights = estimate.weights + (number * parameters if needs_fsdp(config, ranks_of_data) else 0)
    if config.rl.kl_weight > 0:
        shards = config.parallel.data_parallel_shard_size or batch.data_parallel_size
        weights += FP32 * parameters // (shards * config.parallel.tensor_parallel_size)
    training = replace(estimate, weights=weights)
    if config.rl.rollout_ranks:
        return training
    prompts = batch.prompts // (ranks_of_data * batch.rollouts)
    rollout = MemoryEstimate(
        weights=weights,
        optimizer=estimate.optimizer,
        activations=cache_bytes(config, prompts),
        logits=draw_bytes(config, prompts),
        moment="rollout",
    )
    return max(training, rollout, key=lambda moment: moment.peak_bytes)


def generating_bytes(config: Config, prompts: int) -> int:
    """Returns the bytes of a rank that only generates while it answers some prompts at once."""
    parameters = count_parameters(config.model, sequence_length=config.data.sequence_length)
    weights = NUMBER_BYTES[config.trainer.precision] * parameters
    return weights + cache_bytes(config, prompts) + draw_bytes(config, prompts)


def draw_bytes(config: Config, prompts: int) -> int:
    """Returns the bytes of the logits of a token of each pair, and of drawing from them."""
    drawing = DRAW_BYTES if config.rl.top_p is None else TOP_P_BYTES
    if config.rl.top_k is not None:
        drawing = TOP_K_BYTES
    pairs = prompts * (config.rl.generations_per_prompt or 1)
    return (FP32 + drawing) * pairs * config.model.vocabulary


def cache_bytes(config: Config, prompts: int) -> int:
    """Returns the bytes of keys and values while some prompts are answered at once.

    The responses to a prompt share its keys and values.
    """
    model = config.model
    cached = sum(part.cached_numbers for part in layer_parts(model).values())
    per_token = model.num_layers * cached
    pairs = prompts * (config.rl.generations_per_prompt or 1)
    number = NUMBER_BYTES[config.trainer.precision]
    response = max_response_tokens(config)
    tokens = prompts * (config.data.sequence_length - response) + pairs * response
    return number * per_token * tokens
