"""Finds the class of transformers that computes a model."""

from rampcli.config.schema import Config, ModelConfig
from rampcli.errors import UsageError, set_to

TYPE_KEY = "model.huggingface_type"
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
}
"""Classes of transformers that our decoder is equal to, by model type."""
_KEYS = (
    "model.family",
    "model.normalization",
    "model.activation",
    "model.position_embedding",
    "model.bias",
    "model.qk_norm",
    "model.sliding_window",
)


def types_of(model: ModelConfig) -> tuple[str, ...]:
    """Returns the keys of `ARCHITECTURES` whose classes compute a model, the usual one first."""
    if model.family != "decoder":
        return ()
    parts = (model.normalization, model.activation, model.position_embedding)
    if parts == ("layernorm", "gelu", "learned"):
        whole_heads = model.key_heads == model.num_attention_heads and (
            model.head_width * model.num_attention_heads == model.hidden_size
        )
        plain = not model.qk_norm and model.sliding_window is None
        return ("gpt2",) if model.bias and whole_heads and plain else ()
    if parts != ("rmsnorm", "swiglu", "rope"):
        return ()
    if model.qk_norm:
        return () if model.bias or model.sliding_window is not None else ("qwen3",)
    # Llama's class refuses a width that is not a multiple of its heads, whatever their size.
    divides = model.hidden_size % model.num_attention_heads == 0
    is_llama = divides and model.sliding_window is None
    return (*(("llama",) if is_llama else ()), *(() if model.bias else ("mistral",)))


def model_type(model: ModelConfig) -> str:
    """Returns the type of a model, a key of `ARCHITECTURES`.

    Raises:
        UsageError: transformers has no class for the model, or the one of
            `model.huggingface_type` does not compute it.
    """
    types = types_of(model)
    if not types:
        raise UsageError(f"transformers has no class for this model: {_rules(model)}", keys=_KEYS)
    wanted = model.huggingface_type
    if wanted is not None and wanted not in types:
        raise UsageError(
            f"{TYPE_KEY}={wanted} does not compute this model: {_rules(model)}",
            keys=(TYPE_KEY, *_KEYS),
            remedy=set_to(TYPE_KEY, None, note=f" (exports {ARCHITECTURES[types[0]]})"),
        )
    return wanted or types[0]


def _rules(model: ModelConfig) -> str:
    """Returns what a class computes, as far as it concerns a model."""
    if model.family != "decoder":
        return f"model.family={model.family} is an architecture of your own"
    if model.hidden_size % model.num_attention_heads:
        return (
            f"model.hidden_size={model.hidden_size} is not a multiple of model.num_attention_heads="
            f"{model.num_attention_heads}, which only Mistral and Qwen3 allow, without biases"
        )
    return (
        "Llama, Mistral and Qwen3 have rmsnorm, swiglu and rope, GPT-2 has layernorm, gelu, learned"
        " positions and biases; only Mistral has a sliding window, only Qwen3 norms of queries and"
        " keys, only Llama and GPT-2 biases"
    )


def check_huggingface_type(config: Config) -> None:
    """Checks that the class which a run is to be exported as computes its model."""
    if config.model.huggingface_type is not None:
        model_type(config.model)


def export_notes(config: Config) -> tuple[str, ...]:
    """Returns a note if transformers has no class for the model, for users who will export it."""
    if types_of(config.model):
        return ()
    return (
        "rampcli export will refuse this model: transformers has no class for it, as"
        f" {_rules(config.model)}",
    )
