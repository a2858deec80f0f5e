"""Converts between our settings of a model and the `config.json` of Hugging Face's transformers."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from rampcli.batch.step_schedule import LENGTH_KEY
from rampcli.config.layers import build_config
from rampcli.errors import (
    DamagedFileError,
    ErrorReport,
    UsageError,
    reason_of,
    set_to,
    set_together,
    shown,
)
from rampcli.files.records import ANY, POSITIVE, RATE, check_shape, read_json
from rampcli.settings.architectures import ARCHITECTURES, model_type, types_of
from rampcli.settings.checks import check_ranges
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig, check_heads, check_rotary
from rampcli.settings.model_parts import ACTIVATIONS, POSITION_EMBEDDINGS

FOLDER_WANTED = "a folder with config.json and *.safetensors"
refusal = partial(UsageError, keys=(ModelConfig.init_from,))
"""Returns an error about the weights that a run starts from."""
_SIZE_OR_NULL = (POSITIVE, None)
_ROPE = {
    **dict.fromkeys(("rope_type?", "type?"), (str, None)),
    **dict.fromkeys(
        ("rope_theta?", "factor?", "low_freq_factor?", "high_freq_factor?"), (RATE, None)
    ),
    "original_max_position_embeddings?": _SIZE_OR_NULL,
}
ROPE_SCALING = {
    "factor": "rotary_scale_factor",
    "low_freq_factor": "rotary_low_freq_factor",
    "high_freq_factor": "rotary_high_freq_factor",
    "original_max_position_embeddings": "rotary_original_length",
}
"""Our settings of Llama 3.1's rotary positions, by the keys of `rope_scaling`."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of `config.json`.

    Attributes:
        shape: what it holds, as a shape of `rampcli.files.records`.
        default: value if a file leaves it out, as in the class of transformers. An explicit null is
            not replaced: a Mistral whose `sliding_window` is null has no window.
        ours: the setting of `ModelConfig` that it holds, or `sequence_length`, `dropout` or
            `rope_scaling`. None: it is not written.
        is_fixed: our decoder computes the default only.
    """

    shape: Any
    default: Any = None
    ours: str | None = None
    is_fixed: bool = False


_COMMON = {
    "vocab_size": Key(POSITIVE, 32_000, "vocab_size"),
    "initializer_range": Key(RATE, 0.02, "init_std"),
    "tie_word_embeddings": Key(bool, False, "tie_embeddings"),
}
_LLAMA = _COMMON | {
    "num_hidden_layers": Key(POSITIVE, 32, "num_layers"),
    "hidden_size": Key(POSITIVE, 4096, "hidden_size"),
    "intermediate_size": Key(POSITIVE, 11_008, "ffn_hidden_size"),
    "num_attention_heads": Key(POSITIVE, 32, "num_attention_heads"),
    "num_key_value_heads": Key(_SIZE_OR_NULL, None, "num_query_groups"),
    "head_dim": Key(_SIZE_OR_NULL, None, "head_size"),
    "hidden_act": Key(str, "silu", "activation"),
    "max_position_embeddings": Key(POSITIVE, 2048, "sequence_length"),
    "rms_norm_eps": Key(RATE, 1e-6, "norm_epsilon"),
    "rope_theta": Key(RATE, 10_000.0, "rotary_base"),
    "attention_bias": Key(bool, None, "bias"),
    "attention_dropout": Key(ANY, 0.0, "dropout"),
    "rope_scaling": Key((_ROPE, None), None, "rope_scaling"),
    "rope_parameters": Key((_ROPE, None)),
    "mlp_bias": Key(bool),
    "sliding_window": Key(_SIZE_OR_NULL),
}
KEYS: dict[str, dict[str, Key]] = {
    "llama": _LLAMA | dict.fromkeys(("attention_bias", "mlp_bias"), Key(bool, False, "bias")),
    "mistral": _LLAMA
    | {
        "intermediate_size": Key(POSITIVE, 14_336, "ffn_hidden_size"),
        "num_key_value_heads": Key(_SIZE_OR_NULL, 8, "num_query_groups"),
        "max_position_embeddings": Key(POSITIVE, 131_072, "sequence_length"),
        "sliding_window": Key(_SIZE_OR_NULL, 4096, "sliding_window"),
    },
    "qwen3": _LLAMA
    | {
        "vocab_size": Key(POSITIVE, 151_936, "vocab_size"),
        "intermediate_size": Key(POSITIVE, 22_016, "ffn_hidden_size"),
        "num_key_value_heads": Key(_SIZE_OR_NULL, 32, "num_query_groups"),
        "head_dim": Key(_SIZE_OR_NULL, 128, "head_size"),
        "max_position_embeddings": Key(POSITIVE, 32_768, "sequence_length"),
        "attention_bias": Key(bool, False, "bias", is_fixed=True),
        "use_sliding_window": Key(bool, False, is_fixed=True),
    },
    "gpt2": _COMMON
    | {
        "vocab_size": Key(POSITIVE, 50_257, "vocab_size"),
        "tie_word_embeddings": Key(bool, True, "tie_embeddings"),
        "n_layer": Key(POSITIVE, 12, "num_layers"),
        "n_embd": Key(POSITIVE, 768, "hidden_size"),
        "n_inner": Key(_SIZE_OR_NULL, None, "ffn_hidden_size"),
        "n_head": Key(POSITIVE, 12, "num_attention_heads"),
        "n_positions": Key(POSITIVE, 1024, "sequence_length"),
        "layer_norm_epsilon": Key(RATE, 1e-5, "norm_epsilon"),
        "activation_function": Key(str, "gelu_new", "activation"),
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), Key(ANY, 0.1, "dropout")),
        "scale_attn_weights": Key(bool, True, is_fixed=True),
        "scale_attn_by_inverse_layer_idx": Key(bool, False, is_fixed=True),
    },
}
"""Keys of each type, in the order in which they are written. A file may hold more."""
_GPT2_NAMES = {
    "num_hidden_layers": "n_layer",
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
}
"""Other names that transformers takes for keys of GPT-2."""
MOST_CONFIG_BYTES = 2**20
_NAMES = [field.name for field in fields(ModelConfig)]
SHAPE_SETTINGS = tuple(_NAMES[: _NAMES.index("init_std")])
"""The settings that decide what a model computes from its weights."""
NOT_IN_HUGGINGFACE = ("extensions", "family")
"""Those of them that no model of Hugging Face has."""


def to_huggingface(model: ModelConfig, *, sequence_length: int, dtype: str) -> dict[str, Any]:
    """Returns the content of `config.json`.

    Args:
        sequence_length: tokens per sample in training.
        dtype: data type of the weights in the folder, `float32` or `bfloat16`.

    Raises:
        UsageError: transformers has no class for the model.
    """
    kind = model_type(model)
    meaning = _meaning(model)
    ours = meaning | {
        "activation": ACTIVATIONS[model.activation].hidden_act,
        "sequence_length": sequence_length,
        "dropout": 0.0,
    }
    if model.rotary_scale_factor is not None:
        scaling = {name: ours[setting] for name, setting in ROPE_SCALING.items()}
        ours["rope_scaling"] = {"rope_type": "llama3"} | scaling
    written = {name: ours[key.ours] for name, key in KEYS[kind].items() if key.ours in ours}
    content = {
        "architectures": [ARCHITECTURES[kind].name],
        "model_type": kind,
        **{name: written[name] for name in _COMMON},
        "torch_dtype": dtype,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": None,
        **written,
    }
    # A setting that the file has no word for would be lost.
    kept = _meaning(_model_of(content, kind))
    lost = [name for name in SHAPE_SETTINGS if kept[name] != meaning[name]]
    if lost:
        raise UsageError(
            "transformers has no class for this model: config.json has no key for"
            f" {', '.join(f'model.{name}' for name in lost)}",
            keys=tuple(f"model.{name}" for name in lost),
        )
    return content


def read_config(folder: Path) -> ModelConfig:
    """Returns the model of a Hugging Face folder.

    Its settings go through the same checks as settings that a user sets.

    Raises:
        UsageError: there is no `config.json`, it is damaged, or its model is not one of
            `ARCHITECTURES`.
    """
    return _read(folder)[0]


def _read(folder: Path) -> tuple[ModelConfig, int | None]:
    """Returns a folder's model and its number of learned positions, or None if it learns none."""
    path = folder / "config.json"
    try:
        content = read_json(path, {"model_type?": str}, most_bytes=MOST_CONFIG_BYTES)
        kind = content.get("model_type")
        if kind not in ARCHITECTURES:
            raise refusal(
                f"{path} has the unsupported model_type {kind!r}",
                remedy=f"one of {', '.join(ARCHITECTURES)}",
            )
        if kind == "gpt2":
            content = {_GPT2_NAMES.get(key, key): value for key, value in content.items()}
        shapes = {f"{name}?": key.shape for name, key in KEYS[kind].items()}
        check_shape(content, shapes, where=str(path))
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        raise refusal(f"cannot read {path}: {reason_of(error)}", remedy=FOLDER_WANTED) from error
    except DamagedFileError as error:
        raise refusal(error.message, remedy=FOLDER_WANTED) from error
    theirs = ARCHITECTURES[kind]
    content = {name: key.default for name, key in KEYS[kind].items()} | content
    supported = {name: [key.default] for name, key in KEYS[kind].items() if key.is_fixed}
    for name, values in {**supported, theirs.activation_key: list(theirs.activations())}.items():
        if content[name] not in values:
            raise refusal(
                f"{path} has {name}={content[name]}; this decoder supports"
                f" {' or '.join(map(str, values))} only"
            )
    try:
        model = _model_of(content, kind)
    except KeyError as error:
        raise refusal(f"{path} has no {error} for its rotary positions") from error
    has_learned = POSITION_EMBEDDINGS[theirs.position_embedding].is_learned
    return _checked(model, path), content["n_positions"] if has_learned else None


def _checked(model: ModelConfig, path: Path) -> ModelConfig:
    """Returns the model with typed settings."""
    config = build_config(
        {f"model.{name}": value for name, value in as_settings(model).items()},
        place=str(path),
    )
    report = ErrorReport(check_ranges(config))
    if not report.errors:
        report.errors = [*check_heads(config), *check_rotary(config)]
    for error in report.errors:
        error.set_by = (str(path),)
    report.close()
    return config.model


def _model_of(content: Mapping[str, Any], kind: str) -> ModelConfig:
    """Returns the model of a `config.json` that has all keys."""
    theirs = ARCHITECTURES[kind]
    settings = {key.ours: content[name] for name, key in KEYS[kind].items() if key.ours in _NAMES}
    width, heads = settings["hidden_size"], settings["num_attention_heads"]
    settings |= {
        "normalization": theirs.normalization,
        "position_embedding": theirs.position_embedding,
        "activation": theirs.activations()[content[theirs.activation_key]],
        "ffn_hidden_size": settings["ffn_hidden_size"] or 4 * width,
        "qk_norm": theirs.qk_norm,
    }
    if (settings.get("head_size") or 0) * heads == width:
        settings["head_size"] = None
    if POSITION_EMBEDDINGS[theirs.position_embedding].is_rotary:
        settings |= _rotary_of(content)
    if len(theirs.bias) == 1:  # The class does not read keys of biases, if there are any.
        settings["bias"] = theirs.bias[0]
    elif content["attention_bias"] != content["mlp_bias"]:
        raise refusal("attention_bias and mlp_bias differ; this decoder has both or neither")
    model = ModelConfig(**settings)
    if kind == "mistral" and types_of(model)[0] != kind:
        model.huggingface_type = "mistral"
    return model


def _rotary_of(content: Mapping[str, Any]) -> dict[str, Any]:
    rope = {
        "rope_theta": content["rope_theta"],
        "original_max_position_embeddings": content["max_position_embeddings"],
    }
    # transformers 5 merged rope_theta and rope_scaling into rope_parameters.
    for section in (content.get("rope_scaling"), content.get("rope_parameters")):
        rope |= {name: value for name, value in (section or {}).items() if value is not None}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type not in ("default", "llama3"):
        raise refusal(
            f"rotary positions of type {rope_type!r} are not supported", remedy="default or llama3"
        )
    scaling = ROPE_SCALING if rope_type == "llama3" else {}
    return {
        "rotary_base": rope["rope_theta"],
        **{setting: rope[name] for name, setting in scaling.items()},
    }


def has_weights(folder: Path) -> bool:
    """Returns whether a folder has weights in safetensors.

    Pickles are not read, because they could run code.
    """
    return any(folder.glob("*.safetensors"))


def as_settings(model: ModelConfig) -> dict[str, Any]:
    """Returns a model's settings as plain data, for a file of the group `model`."""
    names = [
        name
        for name in (*SHAPE_SETTINGS, "init_std", "huggingface_type")
        if name not in NOT_IN_HUGGINGFACE
    ]
    return {name: getattr(model, name) for name in names}


def check_model_folder(config: Config, folder: Path, *, name: str) -> None:
    """Checks that a folder's model has the configured shape, and positions for a whole sample.

    Raises:
        UsageError: it has not. The error calls the model `name`, and the remedy has its settings.
    """
    theirs, positions = _read(folder)
    check_same_model(config.model, theirs, name)
    ours = config.data.sequence_length
    if positions is not None and ours > positions:
        raise UsageError(
            f"{name} has learned {positions:,} positions, and {LENGTH_KEY}={ours}",
            keys=(ModelConfig.init_from, LENGTH_KEY),
            remedy=set_to(LENGTH_KEY, positions),
        )


def check_same_model(ours: ModelConfig, theirs: ModelConfig, name: str) -> None:
    """Checks that a model of this name has the configured shape.

    Raises:
        UsageError: it does not. The remedy has the settings of that model.
    """
    wanted, found = _meaning(ours), _meaning(theirs)
    different = [setting for setting in SHAPE_SETTINGS if wanted[setting] != found[setting]]
    if different:
        shown_ours = ", ".join(f"model.{setting}={shown(wanted[setting])}" for setting in different)
        raise UsageError(
            f"{name} holds a model that differs from {shown_ours}",
            keys=(ModelConfig.init_from, *(f"model.{setting}" for setting in different)),
            remedy=set_together({f"model.{setting}": found[setting] for setting in different}),
        )


def _meaning(model: ModelConfig) -> dict[str, Any]:
    """Returns a model's settings with defaults filled in, and None for those without effect."""
    values = {name: getattr(model, name) for name in (*SHAPE_SETTINGS, "init_std")}
    values |= {"head_size": model.head_width, "num_query_groups": model.key_heads}
    if model.rotary_scale_factor is None:
        values |= dict.fromkeys(ROPE_SCALING.values())
    if not POSITION_EMBEDDINGS[model.position_embedding].is_rotary:
        values |= {name: None for name in values if name.startswith("rotary_")}
    return values
