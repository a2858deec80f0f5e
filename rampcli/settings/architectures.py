"""Finds the class of transformers that computes a model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rampcli.batch.quantities import listed
from rampcli.errors import UsageError, set_to
from rampcli.settings.model import ModelConfig
from rampcli.settings.model_parts import ACTIVATIONS

if TYPE_CHECKING:
    from rampcli.settings.config import Config


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """A class of transformers, and the models that it computes.

    Attributes:
        name: of the class.
        family: of its models, in messages.
        normalization, position_embedding: settings of these models.
        is_gated: whether their activation is gated.
        activation_key: key of `config.json` that names the activation.
        bias: what `model.bias` may be.
        qk_norm: what `model.qk_norm` is.
        may_slide: whether they may have a sliding window.
        heads_divide: whether the width is a multiple of the number of heads.
        has_whole_heads: whether the heads divide the width, each with keys of its own.
    """

    name: str
    family: str
    normalization: str = "rmsnorm"
    position_embedding: str = "rope"
    is_gated: bool = True
    activation_key: str = "hidden_act"
    bias: tuple[bool, ...] = (False,)
    qk_norm: bool = False
    may_slide: bool = False
    heads_divide: bool = False
    has_whole_heads: bool = False

    def computes(self, model: ModelConfig) -> bool:
        """Returns whether the class computes a model."""
        heads, width = model.num_attention_heads, model.hidden_size
        has_whole_heads = model.key_heads == heads and model.head_width * heads == width
        return (
            model.family == "decoder"
            and model.normalization == self.normalization
            and model.position_embedding == self.position_embedding
            and ACTIVATIONS[model.activation].is_gated == self.is_gated
            and ACTIVATIONS[model.activation].hidden_act is not None
            and model.bias in self.bias
            and model.qk_norm == self.qk_norm
            and (self.may_slide or model.sliding_window is None)
            and (width % heads == 0 or not self.heads_divide)
            and (has_whole_heads or not self.has_whole_heads)
        )

    def activations(self) -> dict[str, str]:
        """Returns the activations that both have: our names by those of transformers."""
        return {
            one.hidden_act: name
            for name, one in ACTIVATIONS.items()
            if one.hidden_act is not None and one.is_gated == self.is_gated
        }


ARCHITECTURES = {
    # Llama's class refuses a width that is not a multiple of its heads, whatever their size.
    "llama": Architecture(
        name="LlamaForCausalLM", family="Llama", bias=(False, True), heads_divide=True
    ),
    "mistral": Architecture(name="MistralForCausalLM", family="Mistral", may_slide=True),
    "qwen3": Architecture(name="Qwen3ForCausalLM", family="Qwen3", qk_norm=True),
    "gpt2": Architecture(
        name="GPT2LMHeadModel",
        family="GPT-2",
        normalization="layernorm",
        position_embedding="learned",
        is_gated=False,
        activation_key="activation_function",
        bias=(True,),
        has_whole_heads=True,
    ),
}
"""Classes of transformers that our decoder is equal to, by model type.

To add a model family of transformers: an entry here, its names of weights in
`rampcli/models/huggingface_tensors.py:WEIGHT_NAMES`, and its keys of config.json in
`rampcli/models/huggingface_config.py:KEYS`.
"""
_POSITIONS = {"rope": "rope", "learned": "learned positions"}
_KEYS = (
    ModelConfig.family,
    ModelConfig.normalization,
    ModelConfig.activation,
    ModelConfig.position_embedding,
    ModelConfig.bias,
    ModelConfig.qk_norm,
    ModelConfig.sliding_window,
)


def types_of(model: ModelConfig) -> tuple[str, ...]:
    """Returns the keys of `ARCHITECTURES` whose classes compute a model, the usual one first."""
    return tuple(kind for kind, theirs in ARCHITECTURES.items() if theirs.computes(model))


def model_type(model: ModelConfig) -> str:
    """Returns the type of a model, a key of `ARCHITECTURES`.

    Raises:
        UsageError: as `misfit_of` returns it.
    """
    if error := misfit_of(model):
        raise error
    return model.huggingface_type or types_of(model)[0]


def misfit_of(model: ModelConfig) -> UsageError | None:
    """Returns an error if no class computes a model, or not that of `model.huggingface_type`."""
    types, wanted = types_of(model), model.huggingface_type
    if not types:
        return UsageError(f"transformers has no class for this model: {_rules(model)}", keys=_KEYS)
    if wanted is None or wanted in types:
        return None
    return UsageError(
        f"{ModelConfig.huggingface_type}={wanted} does not compute this model: {_rules(model)}",
        keys=(ModelConfig.huggingface_type, *_KEYS),
        remedy=set_to(
            ModelConfig.huggingface_type, None, note=f" (exports {ARCHITECTURES[types[0]].name})"
        ),
    )


def _rules(model: ModelConfig) -> str:
    """Returns what a class computes, as far as it concerns a model."""
    if model.family != "decoder":
        return f"model.family={model.family} is an architecture of your own"
    if model.hidden_size % model.num_attention_heads:
        return (
            f"model.hidden_size={model.hidden_size} is not a multiple of model.num_attention_heads="
            f"{model.num_attention_heads}, which only"
            f" {_families(lambda one: not (one.heads_divide or one.has_whole_heads))} allow,"
            " without biases"
        )
    kinds: dict[str, list[str]] = {}
    for one in ARCHITECTURES.values():
        parts = [
            one.normalization,
            " or ".join(one.activations().values()),
            _POSITIONS[one.position_embedding],
            *(["biases"] if False not in one.bias else []),
        ]
        kinds.setdefault(listed(parts), []).append(one.family)
    have = (f"{listed(one)} {'have' if one[1:] else 'has'} {parts}" for parts, one in kinds.items())
    return (
        f"{', '.join(have)}; only {_families(lambda one: one.may_slide)} has a sliding window, only"
        f" {_families(lambda one: one.qk_norm)} norms of queries and keys, only"
        f" {_families(lambda one: True in one.bias)} biases"
    )


def _families(having: Callable[[Architecture], bool]) -> str:
    return listed([one.family for one in ARCHITECTURES.values() if having(one)])


def export_notes(config: "Config") -> tuple[str, ...]:
    """Returns a note if transformers has no class for the model, for users who will export it."""
    if types_of(config.model):
        return ()
    return (
        "rampcli export will refuse this model: transformers has no class for it, as"
        f" {_rules(config.model)}",
    )


def check_huggingface_type(config: "Config") -> Iterator[UsageError]:
    """Checks that the class which a run is to be exported as computes its model."""
    if config.model.huggingface_type is not None and (error := misfit_of(config.model)):
        yield error
