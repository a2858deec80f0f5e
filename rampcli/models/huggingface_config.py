"""Converts between our settings of a model and the `config.json` of Hugging Face's transformers."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from rampcli.config.architectures import ARCHITECTURES, model_type, types_of
from rampcli.config.checks import check_ranges
from rampcli.config.checks.model import check_heads, check_rotary
from rampcli.config.layers import build
from rampcli.config.model_parts import ACTIVATIONS, POSITION_EMBEDDINGS
from rampcli.config.schema import ModelConfig
from rampcli.errors import DamagedFileError, Report, UsageError, reason_of, shown
from rampcli.records import POSITIVE, RATE, check_shape, read_json

INIT_FROM_KEY = "model.init_from"
FOLDER = "a folder with config.json and *.safetensors"
ASSUMED: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen3": {"use_sliding_window": False, "attention_bias": False},
    "gpt2": {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
}
"""Values that our decoder assumes for each type. They are the defaults of transformers."""
_ALIKE = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _ALIKE
    | {
        "vocab_size": 32_000,
        "intermediate_size": 11_008,
        "max_position_embeddings": 2048,
        "attention_bias": False,
        "mlp_bias": False,
    },
    "mistral": _ALIKE
    | {
        "vocab_size": 32_000,
        "intermediate_size": 14_336,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "max_position_embeddings": 131_072,
    },
    "qwen3": _ALIKE
    | {
        "vocab_size": 151_936,
        "intermediate_size": 22_016,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "max_position_embeddings": 32_768,
    },
    "gpt2": {
        "n_layer": 12,
        "n_embd": 768,
        "n_head": 12,
        "activation_function": "gelu_new",
        "vocab_size": 50_257,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
    },
}
"""Values of keys that a file leaves out, by type; other keys are null then.

They are the defaults of transformers' classes. An explicit null is not replaced: a Mistral whose
`sliding_window` is null has no window.
"""
GPT2_POSITIONS = 1024
"""Positions of a GPT-2 whose file leaves `n_positions` out."""
_GPT2_NAMES = {
    "num_hidden_layers": "n_layer",
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
}
"""Other names that transformers takes for keys of GPT-2."""
_SIZE_OR_NULL = (POSITIVE, None)
_ROPE = {
    **dict.fromkeys(("rope_type?", "type?"), str),
    **dict.fromkeys(("rope_theta?", "factor?", "low_freq_factor?", "high_freq_factor?"), RATE),
    "original_max_position_embeddings?": POSITIVE,
}
_OF_LLAMA = {
    "hidden_act?": str,
    **dict.fromkeys(
        (
            "num_hidden_layers?",
            "hidden_size?",
            "intermediate_size?",
            "num_attention_heads?",
            "vocab_size?",
            "max_position_embeddings?",
        ),
        POSITIVE,
    ),
    **dict.fromkeys(("head_dim?", "num_key_value_heads?", "sliding_window?"), _SIZE_OR_NULL),
    **dict.fromkeys(("rms_norm_eps?", "rope_theta?", "initializer_range?"), RATE),
    **dict.fromkeys(("attention_bias?", "mlp_bias?", "tie_word_embeddings?"), bool),
    **dict.fromkeys(("rope_scaling?", "rope_parameters?"), (_ROPE, None)),
}
KEYS: dict[str, dict[Any, Any]] = {
    **dict.fromkeys(("llama", "mistral", "qwen3"), _OF_LLAMA),
    "gpt2": {
        "activation_function?": str,
        **dict.fromkeys(("n_layer?", "n_embd?", "n_head?", "vocab_size?"), POSITIVE),
        "n_inner?": _SIZE_OR_NULL,
        **dict.fromkeys(("layer_norm_epsilon?", "initializer_range?"), RATE),
        "tie_word_embeddings?": bool,
    },
}
"""Keys that are read for each type, and their shapes in `rampcli.records`. A file may hold more."""
MOST_CONFIG_BYTES = 2**20
_NAMES = [field.name for field in fields(ModelConfig)]
SHAPE = tuple(_NAMES[: _NAMES.index("init_std")])
"""The settings that decide what a model computes from its weights."""
OWN = ("extensions", "family")
"""Those of them that no model of Hugging Face has."""


def to_huggingface(model: ModelConfig, *, sequence_length: int, dtype: str) -> dict[str, Any]:
    """Returns the content of `config.json`.

    Args:
        model: shape of the model.
        sequence_length: tokens per sample in training.
        dtype: data type of the weights in the folder, `float32` or `bfloat16`.

    Raises:
        UsageError: transformers has no class for the model.
    """
    kind = model_type(model)
    shape = _to_gpt2 if kind == "gpt2" else _to_llama
    content = {
        "architectures": [ARCHITECTURES[kind].name],
        "model_type": kind,
        ARCHITECTURES[kind].activation_key: ACTIVATIONS[model.activation].hidden_act,
        "vocab_size": model.vocab_size,
        "initializer_range": model.init_std,
        "tie_word_embeddings": model.tie_embeddings,
        "torch_dtype": dtype,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": None,
        **shape(model, kind, sequence_length),
    }
    # A setting that the file has no word for would be lost.
    lost = _differences(model, _model_of(DEFAULTS[kind] | content, kind))
    if lost:
        raise UsageError(
            "transformers has no class for this model: config.json has no key for"
            f" {', '.join(f'model.{name}' for name in lost)}",
            keys=tuple(f"model.{name}" for name in lost),
        )
    return content


def _to_gpt2(model: ModelConfig, _kind: str, sequence_length: int) -> dict[str, Any]:
    return {
        "n_layer": model.num_layers,
        "n_embd": model.hidden_size,
        "n_inner": model.ffn_hidden_size,
        "n_head": model.num_attention_heads,
        "n_positions": sequence_length,
        "layer_norm_epsilon": model.norm_epsilon,
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
    }


def _to_llama(model: ModelConfig, kind: str, sequence_length: int) -> dict[str, Any]:
    content: dict[str, Any] = {
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.key_heads,
        "head_dim": model.head_width,
        "max_position_embeddings": sequence_length,
        "rms_norm_eps": model.norm_epsilon,
        "rope_theta": model.rotary_base,
        "attention_bias": model.bias,
        "attention_dropout": 0.0,
    }
    if model.rotary_scale_factor is not None:
        content["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": model.rotary_scale_factor,
            "low_freq_factor": model.rotary_low_freq_factor,
            "high_freq_factor": model.rotary_high_freq_factor,
            "original_max_position_embeddings": model.rotary_original_length,
        }
    if kind == "llama":
        content["mlp_bias"] = model.bias
    if kind == "mistral":
        content["sliding_window"] = model.sliding_window
    return content


def read_config(folder: Path) -> ModelConfig:
    """Returns the model of a Hugging Face folder.

    Its settings go through the same checks as settings that a user sets.

    Raises:
        UsageError: there is no `config.json`, it is damaged, or its model is not one of
            `ARCHITECTURES`.
    """
    path = folder / "config.json"
    try:
        content = read_json(path, {"model_type?": str}, most_bytes=MOST_CONFIG_BYTES)
        kind = content.get("model_type")
        if kind not in ARCHITECTURES:
            raise UsageError(
                f"{path} has the unsupported model_type {kind!r}",
                keys=(INIT_FROM_KEY,),
                remedy=f"one of {', '.join(ARCHITECTURES)}",
            )
        if kind == "gpt2":
            content = {_GPT2_NAMES.get(key, key): value for key, value in content.items()}
        check_shape(
            content,
            KEYS[kind] | {f"{key}?": type(assumed) for key, assumed in ASSUMED[kind].items()},
            where=str(path),
        )
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        raise UsageError(
            f"cannot read {path}: {reason_of(error)}", keys=(INIT_FROM_KEY,), remedy=FOLDER
        ) from error
    except DamagedFileError as error:
        raise UsageError(error.message, keys=(INIT_FROM_KEY,), remedy=FOLDER) from error
    content = DEFAULTS[kind] | content
    theirs = ARCHITECTURES[kind]
    assumed = {key: [value] for key, value in ASSUMED[kind].items()}
    for key, values in {**assumed, theirs.activation_key: list(theirs.activations())}.items():
        if content.get(key, values[0]) not in values:
            raise UsageError(
                f"{path} has {key}={content[key]}; this decoder supports"
                f" {' or '.join(map(str, values))} only",
                keys=(INIT_FROM_KEY,),
            )
    try:
        model = _model_of(content, kind)
    except KeyError as error:
        raise UsageError(
            f"{path} has no {error} for its rotary positions", keys=(INIT_FROM_KEY,)
        ) from error
    return _checked(model, path)


def learned_positions(folder: Path) -> int | None:
    """Returns how many positions a Hugging Face folder has learned, or None if they are rotary.

    Raises:
        OSError, DamagedFileError: `config.json` cannot be read.
    """
    content = read_json(
        folder / "config.json",
        {"model_type?": str, "n_positions?": POSITIVE},
        most_bytes=MOST_CONFIG_BYTES,
    )
    has_learned = content.get("model_type") == "gpt2"
    return content.get("n_positions", GPT2_POSITIONS) if has_learned else None


def _checked(model: ModelConfig, path: Path) -> ModelConfig:
    """Returns the model with typed settings.

    Raises:
        UsageError: all settings that are out of range or contradict each other.
    """
    config = build(
        {f"model.{name}": value for name, value in as_settings(model).items()},
        place=lambda _: str(path),
    )
    report = Report()
    with report.noting():
        check_ranges(config)
    for check in (check_heads, check_rotary) if not report.errors else ():
        with report.noting():
            check(config)
    for error in report.errors:
        error.set_by = (str(path),)
    report.close()
    return config.model


def _model_of(content: Mapping[str, Any], kind: str) -> ModelConfig:
    """Returns the model of a `config.json` that has all keys.

    Raises:
        KeyError: a key of its rotary positions is missing.
        UsageError: the decoder cannot compute it.
    """
    theirs = ARCHITECTURES[kind]
    model = _from_gpt2(content) if kind == "gpt2" else _from_llama(content, kind)
    model.normalization = theirs.normalization
    model.position_embedding = theirs.position_embedding
    model.activation = theirs.activations()[content[theirs.activation_key]]
    if kind == "mistral" and types_of(model)[0] != kind:
        model.huggingface_type = "mistral"
    return model


def _from_gpt2(content: Mapping[str, Any]) -> ModelConfig:
    return ModelConfig(
        num_layers=content["n_layer"],
        hidden_size=content["n_embd"],
        ffn_hidden_size=content.get("n_inner") or 4 * content["n_embd"],
        num_attention_heads=content["n_head"],
        vocab_size=content["vocab_size"],
        norm_epsilon=content["layer_norm_epsilon"],
        bias=True,
        tie_embeddings=content["tie_word_embeddings"],
        init_std=content["initializer_range"],
    )


def _from_llama(content: Mapping[str, Any], kind: str) -> ModelConfig:
    # transformers 5 merged rope_theta and rope_scaling into rope_parameters.
    rope = {
        "rope_theta": content["rope_theta"],
        "original_max_position_embeddings": content["max_position_embeddings"],
        **(content.get("rope_scaling") or {}),
        **(content.get("rope_parameters") or {}),
    }
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type not in ("default", "llama3"):
        raise UsageError(
            f"rotary positions of type {rope_type!r} are not supported",
            keys=(INIT_FROM_KEY,),
            remedy="default or llama3",
        )
    heads, head_size = content["num_attention_heads"], content.get("head_dim")
    if head_size is not None and head_size * heads == content["hidden_size"]:
        head_size = None
    model = ModelConfig(
        num_layers=content["num_hidden_layers"],
        hidden_size=content["hidden_size"],
        ffn_hidden_size=content["intermediate_size"],
        num_attention_heads=heads,
        head_size=head_size,
        num_query_groups=content.get("num_key_value_heads"),
        vocab_size=content["vocab_size"],
        norm_epsilon=content["rms_norm_eps"],
        rotary_base=float(rope["rope_theta"]),
        qk_norm=kind == "qwen3",
        sliding_window=content["sliding_window"] if kind == "mistral" else None,
        # Mistral's class has no biases, and does not read these keys.
        bias=kind == "llama" and content["attention_bias"],
        tie_embeddings=content["tie_word_embeddings"],
        init_std=content["initializer_range"],
    )
    if kind == "llama" and content["mlp_bias"] != model.bias:
        raise UsageError(
            "attention_bias and mlp_bias differ; this decoder has both or neither",
            keys=(INIT_FROM_KEY,),
        )
    if rope_type == "llama3":
        model.rotary_scale_factor = float(rope["factor"])
        model.rotary_low_freq_factor = float(rope["low_freq_factor"])
        model.rotary_high_freq_factor = float(rope["high_freq_factor"])
        model.rotary_original_length = int(rope["original_max_position_embeddings"])
    return model


def has_weights(folder: Path) -> bool:
    """Returns whether a folder has weights in safetensors.

    Pickles are not read, because they could run code.
    """
    return any(folder.glob("*.safetensors"))


def as_settings(model: ModelConfig) -> dict[str, Any]:
    """Returns a model's settings as plain data, for a file of the group `model`."""
    names = [name for name in (*SHAPE, "init_std", "huggingface_type") if name not in OWN]
    return {name: getattr(model, name) for name in names}


def check_init_from(model: ModelConfig, folder: Path) -> None:
    """Checks that a folder holds weights of a model of the configured shape.

    Raises:
        UsageError: it does not. The remedy has the settings of the folder's model.
    """
    theirs = read_config(folder)
    if not has_weights(folder):
        raise UsageError(
            f"{folder} holds no *.safetensors",
            keys=(INIT_FROM_KEY,),
            remedy="a folder that save_pretrained wrote",
        )
    check_same_model(model, theirs, str(folder))


def check_same_model(ours: ModelConfig, theirs: ModelConfig, name: str) -> None:
    """Checks that a model of this name has the configured shape.

    Raises:
        UsageError: it does not. The remedy has the settings of that model.
    """
    different = _differences(ours, theirs)
    if different:
        shown_ours = ", ".join(f"model.{name}={shown(_meaning(ours, name))}" for name in different)
        raise UsageError(
            f"{name} holds a model that differs from {shown_ours}",
            keys=(INIT_FROM_KEY, *(f"model.{name}" for name in different)),
            remedy=" ".join(f"model.{name}={shown(_meaning(theirs, name))}" for name in different),
        )


def _differences(ours: ModelConfig, theirs: ModelConfig) -> list[str]:
    """Returns the settings in which two models differ."""
    return [name for name in SHAPE if _meaning(ours, name) != _meaning(theirs, name)]


def _meaning(model: ModelConfig, name: str) -> Any:
    """Returns a setting with its default filled in, or None if it has no effect."""
    if name == "head_size":
        return model.head_width
    if name == "num_query_groups":
        return model.key_heads
    is_rotary = POSITION_EMBEDDINGS[model.position_embedding].is_rotary
    if name.startswith("rotary_") and not is_rotary:
        return None
    if (
        name in ("rotary_low_freq_factor", "rotary_high_freq_factor", "rotary_original_length")
        and model.rotary_scale_factor is None
    ):
        return None
    return getattr(model, name)
