"""Sizes of a rank's weights, and of what its layers keep for the backward pass, without torch.

The terms follow `rampcli.models` and `rampcli.parallel` operation by operation.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from rampcli.config.schema import Config, ModelConfig
from rampcli.estimate.model_size import Shape, input_matrices_of, layer_shapes, other_shapes

FP32 = 4
NUMBER_BYTES = {"fp32": 4, "bf16": 2}
"""Bytes per number of the forward and backward pass, by `trainer.precision`."""


def _count(shapes: Iterable[Shape], *, shards: int = 1) -> int:
    """Returns the numbers in a rank's shards of weights: rows are divided, rounded up."""
    return sum(-(-rows // shards) * columns for rows, columns in shapes)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankWeights:
    """Numbers of weights of a pipeline rank, after tensor parallelism.

    Attributes:
        layers: layers of the rank.
        layer, layer_shard: weights of a layer, and those in a rank's shard of it.
        rest, rest_shard: weights outside the layers, and those in a rank's shard of them.
        matrices_shard: weights in a rank's shard of a layer's matrices.
    """

    layers: int
    layer: int
    layer_shard: int
    rest: int
    rest_shard: int
    matrices_shard: int

    @classmethod
    def of(cls, config: Config, pipeline_rank: int, *, shards: int) -> "RankWeights":
        """Returns the weights of a pipeline rank that `shards` ranks share."""
        parallel = config.parallel
        tensor, stages = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
        layer = layer_shapes(config.model, tensor=tensor)
        rest = other_shapes(
            config.model,
            sequence_length=config.data.sequence_length,
            tensor=tensor,
            is_first=pipeline_rank == 0,
            is_last=pipeline_rank == stages - 1,
        )
        matrices = [(rows, columns) for rows, columns in layer if columns > 1]
        return cls(
            layers=config.model.num_layers // stages,
            layer=_count(layer),
            layer_shard=_count(layer, shards=shards),
            rest=_count(rest),
            rest_shard=_count(rest, shards=shards),
            matrices_shard=_count(matrices, shards=shards),
        )

    @property
    def whole(self) -> int:
        """All weights of the rank's stages."""
        return self.layers * self.layer + self.rest

    @property
    def shard(self) -> int:
        """Weights in the rank's shards."""
        return self.layers * self.layer_shard + self.rest_shard


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatchPart:
    """The part of a micro batch that a rank computes on.

    Attributes:
        samples: number of sequences.
        sequence: tokens of each sequence.
        context: context-parallel ranks that share each sequence.
        tensor: tensor-parallel ranks. Between layers they share the tokens.
        on_cpu: whether the rank uses the CPU's kernels.
        number_bytes: bytes per number.
    """

    samples: int
    sequence: int
    context: int
    tensor: int
    on_cpu: bool
    number_bytes: int

    @property
    def queries(self) -> int:
        """Tokens of each sequence on this rank."""
        return self.sequence // self.context

    @property
    def tokens(self) -> int:
        """Tokens in attention and feed-forward layers."""
        return self.samples * self.queries

    def hidden_bytes(self, model: ModelConfig) -> int:
        """Returns the bytes of the hidden states between layers."""
        return self.tokens // self.tensor * model.hidden_size * self.number_bytes

    def gathered_bytes(self, model: ModelConfig) -> int:
        """Returns the bytes of the hidden states of the tokens of all tensor-parallel ranks."""
        return self.tokens * model.hidden_size * self.number_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerMemory:
    """Bytes that a micro batch takes in one layer.

    Attributes:
        kept: from the forward pass to the backward pass, with activation checkpointing.
        recomputed: when the layer's backward pass starts, and everything is recomputed.
        attention: part of `recomputed` that is left when attention's backward pass starts.
        feed_forward_gradients: most of the gradients in the feed-forward layer's backward pass,
            less what it has freed by then.
        attention_gradients: gradients of attention's output, queries, keys and values.
    """

    kept: int
    recomputed: int
    attention: int
    feed_forward_gradients: int
    attention_gradients: int


def layer_memory(config: Config, part: MicroBatchPart) -> LayerMemory:
    """Returns what a micro batch takes in one layer."""
    model, size = config.model, part.number_bytes
    queries, keys = _widths(model, part)
    inner = part.tokens * model.ffn_hidden_size // part.tensor * input_matrices_of(model) * size
    hidden, gathered = part.hidden_bytes(model), part.gathered_bytes(model)
    # Of each head and token, the logarithm of the softmax's denominator in fp32.
    scores = FP32 * part.tokens * model.num_attention_heads // part.tensor
    output = queries * size + scores
    attention = norm_bytes(model, part) + gathered + output + _attention_inputs(config, part)
    if model.qk_norm:
        attention += _rms_norm_bytes(part, numbers=queries + keys, size=model.head_width)
    # A feed-forward layer keeps as much after its activation function as before it.
    saved = attention + norm_bytes(model, part) + gathered + 2 * inner
    products = (queries + 2 * keys) * size + inner + 2 * gathered
    mode = config.trainer.activation_checkpointing
    return LayerMemory(
        kept={"none": saved, "full": hidden, "selective": hidden + products + output}[mode],
        recomputed=saved if mode == "none" else hidden + saved,
        attention=attention if mode == "none" else hidden + attention,
        feed_forward_gradients=hidden + inner,
        attention_gradients=hidden + 2 * (queries + keys) * size,
    )


def norm_bytes(model: ModelConfig, part: MicroBatchPart) -> int:
    """Returns what the normalisation of the hidden states keeps."""
    numbers = part.tokens // part.tensor * model.hidden_size
    if model.normalization == "layernorm":
        return numbers * part.number_bytes + 2 * FP32 * (numbers // model.hidden_size)
    return _rms_norm_bytes(part, numbers=numbers, size=model.hidden_size)


def _rms_norm_bytes(part: MicroBatchPart, *, numbers: int, size: int) -> int:
    lengths = FP32 * (numbers // size)
    if not part.on_cpu:
        return numbers * part.number_bytes + lengths
    # A CPU keeps scaled inputs in fp32. On DTensors, it keeps the inputs in fp32 as well.
    return numbers * FP32 * (2 if part.tensor > 1 else 1) + lengths


def _widths(model: ModelConfig, part: MicroBatchPart) -> tuple[int, int]:
    """Returns how many numbers a rank's queries have, and its keys."""
    numbers = part.tokens * model.head_width
    return (
        numbers * model.num_attention_heads // part.tensor,
        numbers * model.key_heads // part.tensor,
    )


def _attention_inputs(config: Config, part: MicroBatchPart) -> int:
    """Returns the bytes of queries, keys, values, rotations and masks that attention keeps."""
    model, size, context = config.model, part.number_bytes, part.context
    queries, keys = _widths(model, part)
    has_documents = config.data.document_mask
    is_masked = (
        has_documents
        or context > 1
        or (model.sliding_window is not None and model.sliding_window < part.sequence)
    )
    # A context-parallel rank's second piece sees all tokens up to it: with the first one, it sees
    # a piece more than a whole sequence.
    seen = part.sequence + (part.sequence // (2 * context) if context > 1 else 0)
    total = queries * size
    if context > 1:
        # Keys and values of all ranks, and the output in the order of the projection.
        total += 2 * keys * context * size + queries * size
    repeats = queries // keys
    if repeats > 1 and (is_masked or (size == FP32 and not part.on_cpu)):
        total += 2 * keys * repeats * size * context * seen // part.sequence
    elif context == 1:
        total += 2 * keys * size
    if is_masked:
        rows = part.queries // (2 if context > 1 else 1)
        total += rows * seen * size * (part.samples if has_documents else 1)
    if model.position_embedding == "rope" and size < FP32:
        # FSDP casts the fp32 table of rotations for each layer.
        positions = part.tokens if has_documents else part.queries
        total += 2 * positions * model.head_width * size
    return total
