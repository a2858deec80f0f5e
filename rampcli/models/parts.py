"""What the parts of a decoder declare: parameters, matrix operations, memory, tensor plan.

The modules are built from these declarations, and plans add them up without torch.

A tensor plan says how `rampcli.parallel.tensor` splits a module's submodules, by name. The key ""
stands for the module itself; the values are keys of `rampcli.parallel.tensor.PARALLEL_STYLES`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rampcli.settings.model import ModelConfig
from rampcli.settings.model_parts import ACTIVATIONS, NORMS, POSITION_EMBEDDINGS, Norm

SMALLEST_FLEX_HEAD = 16
"""Smallest size of heads for torch's flex attention on a GPU."""
FP32, INT64 = 4, 8
NUMBER_BYTES = {"fp32": FP32, "bf16": 2}
"""Bytes per number of the forward and backward pass, by `trainer.precision`."""
LOGIT_TOKENS_AT_ONCE = {"cpu": 256, "cuda": 2048}
"""Smallest chunk of tokens whose logits are computed at once, by device.

Smaller chunks would leave the device idle.
"""
LOGITS_AT_ONCE = 2**23
"""Logits per chunk if the vocabulary is small.

Larger chunks add to the projection's gradient less often.
"""
Shape = tuple[int, ...]
"""Rows and columns of a matrix, or the length of a vector."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatchPart:
    """The part of a micro batch that a rank computes on.

    Attributes:
        context: context-parallel ranks that share each sequence.
        tensor: tensor-parallel ranks. Between layers they share the tokens.
        device: `cpu` or `cuda`, which have different kernels.
        has_documents: whether tokens attend to their own document only.
    """

    samples: int
    sequence: int
    context: int = 1
    tensor: int = 1
    device: Literal["cpu", "cuda"]
    number_bytes: int
    has_documents: bool = False

    @property
    def queries(self) -> int:
        """Tokens of each sequence on this rank."""
        return self.sequence // self.context

    @property
    def tokens(self) -> int:
        """Tokens in attention and feed-forward layers."""
        return self.samples * self.queries

    @property
    def seen(self) -> int:
        """Tokens that attention sees, summed over this rank's pieces of a sequence.

        A context-parallel rank has two. Together they see all tokens and a piece more.
        """
        return self.sequence + (self.sequence // (2 * self.context) if self.context > 1 else 0)

    def hidden_bytes(self, model: ModelConfig) -> int:
        """Returns the bytes of the hidden states between layers."""
        return self.tokens // self.tensor * model.hidden_size * self.number_bytes

    def gathered_bytes(self, model: ModelConfig) -> int:
        """Returns the bytes of the hidden states of the tokens of all tensor-parallel ranks."""
        return self.tokens * model.hidden_size * self.number_bytes


def is_masked(model: ModelConfig, batch: MicroBatchPart) -> bool:
    """Returns whether attention is more than causal (`rampcli.models.masks.build_mask`)."""
    return batch.has_documents or (
        model.sliding_window is not None and model.sliding_window < batch.sequence
    )


def mask_bytes(model: ModelConfig, batch: MicroBatchPart) -> int:
    """Returns the bytes of the mask of a forward pass, or 0 if it has no number for each pair.

    A GPU needs such a mask if flex attention cannot compute heads of this size.
    """
    has_flex_attention = batch.device == "cpu" or model.head_width >= SMALLEST_FLEX_HEAD
    return 0 if has_flex_attention else dense_mask_bytes(model, batch)


def dense_mask_bytes(model: ModelConfig, batch: MicroBatchPart) -> int:
    """Returns the bytes of a mask that has a number for each pair of tokens.

    Returns 0 if attention is causal, so that no device needs one.
    """
    if not is_masked(model, batch):
        return 0
    rows = batch.queries // (2 if batch.context > 1 else 1)
    return rows * batch.seen * batch.number_bytes * (batch.samples if batch.has_documents else 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """Bytes that a micro batch takes in a part.

    Attributes:
        saved: from the forward to the backward pass, if nothing is recomputed.
        products: those of matrix products and attention, which `selective` checkpointing keeps.
        gradients: peak of the gradients in the backward pass, minus saved tensors freed by then.
    """

    saved: int = 0
    products: int = 0
    gradients: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    """A linear layer."""

    inputs: int
    outputs: int
    has_bias: bool
    split: Literal["columns", "rows", "logits"]

    @property
    def weights(self) -> int:
        """Number of weights, without the bias."""
        return self.inputs * self.outputs

    def parameters(self, tensor: int = 1) -> dict[str, Shape]:
        """Returns the shapes of its parameters by name, as `Part.parameters`."""
        rows, columns = self.outputs, self.inputs
        if self.split == "rows":
            columns //= tensor
        else:
            rows //= tensor
        return {"weight": (rows, columns)} | ({"bias": (rows,)} if self.has_bias else {})


class Part:
    """A part of a decoder.

    Attributes:
        linears: its linear layers, by the name of the submodule.
        cached_numbers: numbers that it caches for each token while text is generated.
    """

    cached_numbers = 0

    def __init__(self, linears: Mapping[str, Linear] | None = None) -> None:
        self.linears = linears or {}

    def parameters(self, tensor: int = 1) -> dict[str, Shape]:
        """Returns the shapes of its parameters on one of `tensor` tensor-parallel ranks.

        Their names and their order are those of the module's parameters.
        """
        return _named({name: one.parameters(tensor) for name, one in self.linears.items()})

    def flops(self, seen: float) -> float:  # noqa: ARG002
        """Returns the operations of its matrix products in a forward pass, per token.

        Args:
            seen: tokens that a token attends to, on average.
        """
        return 2 * sum(linear.weights for linear in self.linears.values())

    def kept(self, batch: MicroBatchPart) -> Kept:  # noqa: ARG002
        """Returns the memory that its backward pass needs."""
        return Kept()


class NormPart(Part):
    """A normalisation of vectors of `size` numbers."""

    def __init__(self, kind: Norm, size: int) -> None:
        super().__init__()
        self.kind, self.size = kind, size

    def parameters(self, tensor: int = 1) -> dict[str, Shape]:  # noqa: ARG002, D102
        return dict.fromkeys(("weight", "bias")[: self.kind.vectors], (self.size,))

    def kept(self, batch: MicroBatchPart) -> Kept:  # noqa: D102
        return Kept(saved=self.bytes_of(batch.tokens // batch.tensor * self.size, batch))

    def bytes_of(self, numbers: int, batch: MicroBatchPart) -> int:
        """Returns the bytes that the normalisation of some numbers keeps."""
        number = batch.number_bytes
        if self.kind.is_kept_in_fp32 and batch.device == "cpu":
            number = FP32 * (2 if batch.tensor > 1 else 1)
        return numbers * number + self.kind.statistics * FP32 * (numbers // self.size)


class AttentionPart(Part):
    """The attention layer, which `rampcli.models.attention` computes."""

    def __init__(self, model: ModelConfig) -> None:
        self.model = model
        self.query_width = model.num_attention_heads * model.head_width
        self.key_width = model.key_heads * model.head_width
        super().__init__(
            {
                "query": _columns(model, self.query_width),
                "key": _columns(model, self.key_width),
                "value": _columns(model, self.key_width),
                "output": _rows(model, self.query_width),
            }
        )
        self.cached_numbers = 2 * self.key_width
        self.head_norm = NormPart(NORMS["rmsnorm"], model.head_width) if model.qk_norm else None
        norms = dict.fromkeys(("query_norm", "key_norm"), "heads")
        self.tensor_plan = _plan(self.linears) | (norms if model.qk_norm else {})

    def parameters(self, tensor: int = 1) -> dict[str, Shape]:  # noqa: D102
        norm = self.head_norm.parameters() if self.head_norm else {}
        return super().parameters(tensor) | _named(dict.fromkeys(("query_norm", "key_norm"), norm))

    def flops(self, seen: float) -> float:  # noqa: D102
        return super().flops(seen) + 4 * self.query_width * seen

    def kept(self, batch: MicroBatchPart) -> Kept:  # noqa: D102
        size = batch.number_bytes
        queries = batch.tokens * self.query_width // batch.tensor
        keys = batch.tokens * self.key_width // batch.tensor
        # Of each head and token, the logarithm of the softmax's denominator in fp32.
        scores = FP32 * batch.tokens * self.model.num_attention_heads // batch.tensor
        output, gathered = queries * size + scores, batch.gathered_bytes(self.model)
        saved = gathered + output + self._inputs(batch, queries, keys)
        if self.head_norm is not None:
            saved += self.head_norm.bytes_of(queries + keys, batch)
        return Kept(
            saved=saved,
            products=(queries + 2 * keys) * size + output + gathered,
            gradients=2 * (queries + keys) * size,
        )

    def _inputs(self, batch: MicroBatchPart, queries: int, keys: int) -> int:
        """Returns the bytes of queries, keys, values and rotations that are kept."""
        model, size, context = self.model, batch.number_bytes, batch.context
        total = queries * size
        if context > 1:
            # Keys and values of all ranks, and the output in the order of the projection.
            total += 2 * keys * context * size + queries * size
        repeats = queries // keys
        is_causal_gpu = batch.device != "cpu" and not is_masked(model, batch)
        if repeats > 1 and (mask_bytes(model, batch) or (size == FP32 and is_causal_gpu)):
            total += 2 * keys * repeats * size * context * batch.seen // batch.sequence
        elif context == 1:
            total += 2 * keys * size
        if POSITION_EMBEDDINGS[model.position_embedding].is_rotary and size < FP32:
            # FSDP casts the fp32 table of rotations for each layer.
            positions = batch.tokens if batch.has_documents else batch.queries
            total += 2 * positions * model.head_width * size
        return total


class FeedForwardPart(Part):
    """The feed-forward layer, which `rampcli.models.decoder.FeedForward` computes."""

    def __init__(self, model: ModelConfig) -> None:
        self.model = model
        self.activation = ACTIVATIONS[model.activation]
        inputs = ("gate", "up") if self.activation.is_gated else ("up",)
        super().__init__(
            {
                **dict.fromkeys(inputs, _columns(model, model.ffn_hidden_size)),
                "output": _rows(model, model.ffn_hidden_size),
            }
        )
        self.tensor_plan = _plan(self.linears)

    def kept(self, batch: MicroBatchPart) -> Kept:  # noqa: D102
        inner = batch.tokens * self.model.ffn_hidden_size // batch.tensor * batch.number_bytes
        inputs = (len(self.linears) - 1) * inner
        gathered = batch.gathered_bytes(self.model)
        return Kept(
            saved=gathered + self.activation.kept * inner,
            products=inputs + gathered,
            gradients=inputs,
        )


class EmbeddingPart(Part):
    """The embedding of tokens, or of learned positions."""

    def __init__(self, rows: int, width: int, *, split: Literal["rows", "columns"]) -> None:
        super().__init__()
        self.rows, self.width, self.split = rows, width, split

    def parameters(self, tensor: int = 1) -> dict[str, Shape]:  # noqa: D102
        if self.split == "rows":
            return {"weight": (self.rows // tensor, self.width)}
        return {"weight": (self.rows, self.width // tensor)}


class HeadPart(Part):
    """The output projection with the loss, which `rampcli.models.loss` computes."""

    def __init__(self, model: ModelConfig) -> None:
        self.model = model
        self.linear = Linear(
            inputs=model.hidden_size, outputs=model.vocabulary, has_bias=False, split="logits"
        )
        super().__init__({"": self.linear})

    def parameters(self, tensor: int = 1) -> dict[str, Shape]:  # noqa: D102
        return {} if self.model.tie_embeddings else super().parameters(tensor)

    def kept(self, batch: MicroBatchPart) -> Kept:  # noqa: D102
        return Kept(saved=batch.gathered_bytes(self.model))

    def loss_bytes(self, batch: MicroBatchPart) -> int:
        """Returns the bytes of the loss's forward pass, which computes gradients too."""
        vocabulary = self.model.vocabulary // batch.tensor
        if batch.tensor > 1:
            # All logits in fp32: their logarithms, and their gradients while they are computed.
            return 4 * FP32 * batch.tokens * vocabulary
        chunk = chunk_size(batch.tokens, vocabulary, device=batch.device)
        logits, weights = FP32, FP32
        if batch.number_bytes < FP32:
            # Logits and their gradients in bf16, and the product that is added to the gradient.
            logits, weights = FP32 + 2 * batch.number_bytes, FP32 + batch.number_bytes
        states = FP32 * chunk * self.model.hidden_size
        gradients = weights * self.linear.weights + batch.gathered_bytes(self.model)
        return logits * chunk * vocabulary + gradients + states


def chunk_size(tokens: int, vocabulary: int, *, device: str) -> int:
    """Returns the number of tokens whose logits are computed at once."""
    return min(tokens, max(LOGIT_TOKENS_AT_ONCE[device], LOGITS_AT_ONCE // vocabulary))


def norm_part(model: ModelConfig) -> NormPart:
    """Returns the normalisation of the hidden states."""
    return NormPart(NORMS[model.normalization], model.hidden_size)


def layer_parts(model: ModelConfig) -> dict[str, Part]:
    """Returns the parts of a layer (`rampcli.models.decoder.Block`) by name, in their order.

    To add a part of the model's layers: its declaration here, its module in
    `rampcli/models/decoder.py:Block`, and its settings in `rampcli/settings/model.py:ModelConfig`.
    """
    return {
        "attention_norm": norm_part(model),
        "attention": AttentionPart(model),
        "ffn_norm": norm_part(model),
        "ffn": FeedForwardPart(model),
    }


def outer_parts(
    model: ModelConfig, *, sequence_length: int, is_first: bool = True, is_last: bool = True
) -> dict[str, Part]:
    """Returns the parts of a decoder outside its layers, by name.

    Args:
        is_first: whether it embeds tokens. Only the first stage of a pipeline does.
        is_last: whether it computes the loss. Only the last stage does.
    """
    parts: dict[str, Part] = {}
    if is_first or (is_last and model.tie_embeddings):
        parts["embedding"] = EmbeddingPart(model.vocabulary, model.hidden_size, split="rows")
    if is_first and POSITION_EMBEDDINGS[model.position_embedding].is_learned:
        parts["position_embedding"] = EmbeddingPart(
            sequence_length, model.hidden_size, split="columns"
        )
    if is_last:
        parts["norm"] = norm_part(model)
        parts["output"] = HeadPart(model)
    return parts


def table_bytes(model: ModelConfig, batch: MicroBatchPart) -> int:
    """Returns the bytes of a decoder's tables of positions and of rotations."""
    positions = INT64 * batch.queries
    if POSITION_EMBEDDINGS[model.position_embedding].is_rotary:
        return positions + FP32 * 2 * batch.sequence * model.head_width
    return positions


def _columns(model: ModelConfig, outputs: int) -> Linear:
    return Linear(inputs=model.hidden_size, outputs=outputs, has_bias=model.bias, split="columns")


def _rows(model: ModelConfig, inputs: int) -> Linear:
    return Linear(inputs=inputs, outputs=model.hidden_size, has_bias=model.bias, split="rows")


def _named(parameters: Mapping[str, Mapping[str, Shape]]) -> dict[str, Shape]:
    """Returns the parameters of some submodules, each with the submodule's name before its own."""
    return {
        f"{submodule}.{name}".removeprefix("."): shape
        for submodule, shapes in parameters.items()
        for name, shape in shapes.items()
    }


def _plan(linears: Mapping[str, Linear]) -> dict[str, str]:
    return {"": "gathered_input"} | {name: linear.split for name, linear in linears.items()}
