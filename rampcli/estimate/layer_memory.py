"""Sizes of a rank's weights, and of what its layers keep for the backward pass.

Both are sums over what the parts of a model declare (`rampcli.models.parts`).
"""

from dataclasses import dataclass

from rampcli.estimate.model_size import count_weights, matrices_of, shapes_of
from rampcli.models.parts import FP32, MicroBatchPart, layer_parts, outer_parts
from rampcli.settings.config import Config


def shards_and_replicas(config: Config, data_parallel_size: int) -> tuple[int, int]:
    """Returns how many ranks share a copy of a stage's weights, and how many copies there are."""
    parallel, context = config.parallel, config.parallel.context_parallel_size
    shards = (parallel.data_parallel_shard_size or data_parallel_size) * context
    return shards, data_parallel_size * context // shards


def needs_fsdp(config: Config, data_parallel_size: int) -> bool:
    """Returns whether FSDP2 holds the weights. Otherwise each rank has a plain model in fp32.

    FSDP2 shards weights, casts them to bf16, reduces the partial gradients of weights that tensor
    ranks replicate, such as norms, and averages gradients over replicas of a pipeline.
    """
    parallel = config.parallel
    shards, replicas = shards_and_replicas(config, data_parallel_size)
    return (
        config.trainer.precision != "fp32"
        or shards * parallel.tensor_parallel_size > 1
        or (replicas > 1 and parallel.pipeline_parallel_size > 1)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RankWeights:
    """Numbers of weights of a pipeline rank, after tensor parallelism.

    Attributes:
        layer, layer_shard: weights of a layer, and those in a rank's shard of it.
        head, head_shard: weights of the last norm and the output projection, and those in a rank's
            shard of them. None if the output projection is tied to the embedding.
        rest, rest_shard: the other weights, and those in a rank's shard of them.
        matrices_shard: weights in a rank's shard of a layer's matrices.
        last_of_layer: weights of a layer's last matrix.
    """

    layers: int
    layer: int
    layer_shard: int
    head: int
    head_shard: int
    rest: int
    rest_shard: int
    matrices_shard: int
    last_of_layer: int

    @classmethod
    def of(cls, config: Config, pipeline_rank: int, *, shards: int) -> "RankWeights":
        """Returns the weights of a pipeline rank that `shards` ranks share."""
        parallel = config.parallel
        tensor, stages = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
        outer = outer_parts(
            config.model,
            sequence_length=config.data.sequence_length,
            is_first=pipeline_rank == 0,
            is_last=pipeline_rank == stages - 1,
        )
        parts = layer_parts(config.model).values()
        *_, last = (linear for part in parts for linear in part.linears.values())
        layer = shapes_of(parts, tensor=tensor)
        # As `rampcli.parallel.fsdp.shard_over_data_ranks` divides them.
        apart = set() if config.model.tie_embeddings else {"norm", "output"}
        head = shapes_of((outer[name] for name in outer if name in apart), tensor=tensor)
        rest = shapes_of((outer[name] for name in outer if name not in apart), tensor=tensor)
        return cls(
            layers=config.model.num_layers // stages,
            layer=count_weights(layer),
            layer_shard=count_weights(layer, shards=shards),
            head=count_weights(head),
            head_shard=count_weights(head, shards=shards),
            rest=count_weights(rest),
            rest_shard=count_weights(rest, shards=shards),
            matrices_shard=count_weights(matrices_of(layer), shards=shards),
            last_of_layer=last.weights // tensor,
        )

    @property
    def whole(self) -> int:
        """All weights of the rank's stages."""
        return self.layers * self.layer + self.head + self.rest

    @property
    def shard(self) -> int:
        """Weights in the rank's shards."""
        return self.layers * self.layer_shard + self.head_shard + self.rest_shard


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerMemory:
    """Bytes that a micro batch takes in one layer.

    Attributes:
        kept: from the forward pass to the backward pass, with activation checkpointing.
        feed_forward: in the backward pass of the feed-forward layer, after everything is
            recomputed.
        attention: in the backward pass of attention.
    """

    kept: int
    feed_forward: int
    attention: int


def layer_memory(config: Config, batch: MicroBatchPart) -> LayerMemory:
    """Returns the memory that a micro batch takes in one layer."""
    parts = {name: part.kept(batch) for name, part in layer_parts(config.model).items()}
    kept, after = list(parts.values()), list(parts).index("attention") + 1
    saved, left = (sum(part.saved for part in some) for some in (kept, kept[:after]))
    products = sum(part.products for part in kept)
    hidden = batch.hidden_bytes(config.model)
    mode = config.trainer.activation_checkpointing
    inputs = 0 if mode == "none" else hidden  # a layer that is recomputed keeps its input
    gradients = hidden + max(part.gradients for part in kept[after:])
    return LayerMemory(
        kept={"none": saved, "full": hidden, "selective": hidden + products}[mode],
        feed_forward=inputs + saved + gradients,
        attention=inputs + left + hidden + parts["attention"].gradients,
    )


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
