"""Counts the bytes of gradients that ranks exchange, without torch."""

from rampcli.estimate.layer_memory import RankWeights, shards_and_replicas
from rampcli.models.parts import FP32
from rampcli.settings.config import Config


def gradient_bytes(config: Config, *, data_parallel_size: int, reductions: int) -> int:
    """Returns the bytes of gradients that a rank sends in a step, if there is no pipeline.

    Ranks that share a copy of the weights reduce-scatter gradients, and replicas all-reduce their
    shards once. Rings of n ranks send (n - 1) / n and twice that of the numbers, in fp32.

    Args:
        reductions: how often gradients are reduced in a step.
    """
    shards, replicas = shards_and_replicas(config, data_parallel_size)
    weights = RankWeights.of(config, 0, shards=shards)
    scattered = reductions * weights.shard * (shards - 1)
    summed = 2 * weights.shard * (replicas - 1) // replicas
    return FP32 * (scattered + summed)
