"""Reads the settings of NeMo's YAML files: the meaning of each key here, if it has one.

A rule gives one of our settings from NeMo's keys, as NeMo and its Megatron core compute with them.
NeMo 2 names most keys otherwise than NeMo 1; its files are read under NeMo 1's names.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from rampcli.batch.node_policies import POLICY_KEY
from rampcli.batch.plan import GLOBAL_KEY
from rampcli.batch.ramp import RAMP_KEY
from rampcli.words import nemo_keys as tables
from rampcli.words.formats import NOT_SET, Decided, FileFormat, ForeignRun, Unresolved
from rampcli.words.nemo_keys import SCHEDULE

TARGET = "_target_"
EVERYTHING = 10**9
"""Most samples of a validation on the whole corpus."""
_LEAVE = object()
"""What a rule returns if its setting does not apply."""
_CLASS = f"model.config.{TARGET}"
_TRAIN, _VALIDATION = "model.data.data_prefix.train", "model.data.data_prefix.validation"
_NOT_OF_CLASSES = ("model.vocab_size", GLOBAL_KEY, RAMP_KEY)
_MARKS = ("exp_manager.", "model.optim.", "model.data.")
"""Sections of NeMo 1's files that ours never have."""


class _NoEqual(Exception):
    def __init__(self, word: str, reason: str) -> None:
        super().__init__(reason)
        self.word, self.reason = word, reason


class _Words:
    """The keys of a file under NeMo 1's names, with a record of those that a rule asks for.

    Attributes:
        given: key of the file and value, by NeMo 1's name.
        defaults: values of keys that are left out or null.
        asked: words that were asked for since the record was cleared.
    """

    def __init__(
        self, given: Mapping[str, tuple[str, Any]], defaults: Mapping[str, Any] = tables.DEFAULTS
    ) -> None:
        self.given, self.defaults = given, defaults
        self.asked: dict[str, None] = {}
        self.notes: dict[str, str] = {}

    def __call__(self, word: str) -> Any:
        """Returns a value, or NeMo's default.

        Raises:
            _NoEqual: the value has a reference that cannot be followed.
        """
        self.asked[word] = None
        _, value = self.given.get(word, ("", None))
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Unresolved):
                found = re.search(r"\$\{[^${}]*\}", part.text)
                raise _NoEqual(word, f"names {found[0]}, which is not set" if found else NOT_SET)
        return self.defaults.get(word) if value is None or value == {} else value

    def required(self, word: str) -> Any:
        """Returns a value that has no default."""
        if (value := self(word)) is None:
            raise _NoEqual(word, NOT_SET)
        return value

    def keys(self) -> tuple[str, ...]:
        """Returns the keys of the file that were asked for: those with a value if there are any."""
        pairs = [self.given[word] for word in self.asked if word in self.given]
        keys = [key for key, value in pairs if value is not None] or [key for key, _ in pairs]
        return tuple(dict.fromkeys(keys))

    def spelled(self, word: str) -> str:
        """Returns the key of the file for NeMo 1's name."""
        if word in self.given or self.defaults is tables.DEFAULTS:
            return self.given.get(word, (word,))[0]
        names = {ours: name for name, ours in tables.NAMES_2.items()}
        pairs = [(a, b) for a, b in tables.PREFIXES_2.items() if word.startswith(b)]
        start, renamed = max(pairs, key=lambda pair: len(pair[1]), default=("", ""))
        return names.get(word, start + word.removeprefix(renamed))


Rule = Callable[[_Words], Any]


def _same(word: str, default: Any) -> Rule:
    return lambda words: words.required(word) if default is tables.REQUIRED else words(word)


def _chosen(word: str, _: Any, values: Mapping[str, str], reason: str) -> Rule:
    def rule(words: _Words) -> str:
        if (value := str(words(word)).lower()) in values:
            return values[value]
        raise _NoEqual(word, reason)

    return rule


def _if_scaled(word: str) -> Rule:
    """Returns a rule for RoPE scaling. NeMo 1 has a switch for it, and NeMo 2 classes."""

    def rule(words: _Words) -> Any:
        value, is_nemo_2 = words(word), words.defaults is not tables.DEFAULTS
        is_scaled = word in words.given if is_nemo_2 else words("model.scale_positional_embedding")
        return value if is_scaled else _LEAVE

    return rule


def _vocabulary(words: _Words) -> int:
    if (size := words("model.override_vocab_size")) is not None:
        return int(size)
    name, own = str(words("model.tokenizer.type")), words("model.tokenizer.vocab_size")
    known = (n for start, n in tables.TOKENIZERS.items() if name.startswith(start))
    tokens = next(known, None if own is None else own + 1)  # An own one adds an end of documents.
    if tokens is None:
        words("model.tokenizer.model")
        given = [word for word in words.asked if word in words.given]
        reason = "the vocabulary of the tokenizer is not known; set model.vocab_size"
        raise _NoEqual(given[-1] if given else "model.tokenizer.type", reason)
    # A number of ranks below 1 is refused as itself.
    ranks = max(1, words("model.tensor_model_parallel_size"))
    unit = ranks * words("model.make_vocab_size_divisible_by")
    return int(-(-tokens // unit) * unit)


def _window(words: _Words) -> int | None:
    if (window := words("model.window_size")) is None:
        return None
    if window[1]:
        raise _NoEqual("model.window_size", "a token attends to no later ones here")
    return int(window[0]) + 1  # NeMo does not count the token itself.


def _qk_norm(words: _Words) -> bool:
    is_rms = str(words("model.normalization")).lower() == "rmsnorm"
    if words("model.qk_layernorm") and not is_rms:
        raise _NoEqual("model.qk_layernorm", "queries and keys have RMSNorm here")
    return bool(words("model.qk_layernorm"))


def _is_mock(words: _Words) -> bool:
    if (kind := words("model.data.data_impl")) not in (None, "mock", "mmap"):
        raise _NoEqual("model.data.data_impl", "data of this kind cannot be read here")
    return bool(kind == "mock")


def _paths(words: _Words, word: str) -> list[Any]:
    """Returns a path, or weights and paths in turns; empty for random tokens."""
    if _is_mock(words) or not (paths := words(word)):
        return []
    paths = paths if isinstance(paths, list) else [paths]
    weights = [re.fullmatch(r"[0-9.]+(e-?[0-9]+)?", str(weight)) for weight in paths[::2]]
    if len(paths) > 1 and (len(paths) % 2 or not all(weights)):
        raise _NoEqual(word, "corpora need weights here")
    return paths[-1:] if len(paths) == 2 else paths


def _corpora(words: _Words) -> list[Any]:
    word = _TRAIN if _TRAIN in words.given else "model.data.data_prefix"
    paths = _paths(words, word)
    if not paths and not _is_mock(words):
        raise _NoEqual(word, "names no corpus")
    return paths


def _validation_path(words: _Words) -> str | None:
    if len(paths := _paths(words, _VALIDATION)) > 1:
        raise _NoEqual(_VALIDATION, "validation corpora are not blended here")
    return str(paths[0]) if paths else None


def _split(words: _Words) -> Any:
    if words(_TRAIN) is not None:
        return [1.0, 0.0, 0.0]
    split = words("model.data.splits_string")
    shares = split if isinstance(split, list) else re.findall(r"[0-9.]+", str(split))
    return [*map(float, shares), 0.0, 0.0][:3] if shares else _LEAVE


def _document_mask(words: _Words) -> bool:
    """NeMo's fused attention is causal over the whole sample, whatever the data say."""
    word = "model.data.reset_attention_mask"
    if words(word) and not words("model.get_attention_mask_from_fusion"):
        raise _NoEqual(word, "documents are separated here by data.document_mask=true")
    if words(word):
        words.notes[word] = "NeMo's fused attention ignores it, and so does this run"
    return False


def _devices(words: _Words) -> int:
    if isinstance(devices := words("trainer.devices"), list):
        return len(devices)
    if not str(devices).isdecimal():
        raise _NoEqual("trainer.devices", "the number of GPUs is not given")
    return int(devices)


def _max_steps(words: _Words) -> int:
    if (steps := words("trainer.max_steps")) is not None and steps >= 0:
        return int(steps)
    word = "trainer.max_epochs" if words("trainer.max_epochs") else "trainer.max_steps"
    raise _NoEqual(word, "a run ends after steps, samples or tokens here")


def _clipping(words: _Words) -> float | None:
    limit = words("trainer.gradient_clip_val")
    return limit if limit is not None and limit > 0 else None


def _val_every_steps(words: _Words) -> int | None:
    interval = words("trainer.val_check_interval")
    if isinstance(interval, int) or interval == 1:
        return interval if isinstance(interval, int) else None
    raise _NoEqual("trainer.val_check_interval", "validations are counted in steps here")


def _max_val_samples(words: _Words) -> Any:
    batches = words("trainer.limit_val_batches")
    if isinstance(batches, int) or batches == 0:
        return batches * words.required("model.global_batch_size") if batches else _LEAVE
    if batches == 1 and not _is_mock(words):
        return EVERYTHING
    raise _NoEqual("trainer.limit_val_batches", "validations are counted in samples here")


def _beta(number: int) -> Rule:
    def rule(words: _Words) -> Any:
        own = words(f"model.optim.adam_beta{number}")
        return words("model.optim.betas")[number - 1] if own is None else own

    return rule


def _is_inverse(words: _Words) -> bool:
    return str(words(f"{SCHEDULE}.name")).startswith("InverseSquareRoot")


def _warmup_steps(words: _Words) -> int:
    if words(f"{SCHEDULE}.name") is None:
        return 0
    steps, ratio = words(f"{SCHEDULE}.warmup_steps") or 0, words(f"{SCHEDULE}.warmup_ratio")
    if ratio:
        return int(ratio * words.required("trainer.max_steps"))
    if steps != int(steps):
        raise _NoEqual(f"{SCHEDULE}.warmup_steps", "is not a whole number")
    return int(steps)


def _tail_start(words: _Words) -> int | None:
    """Returns the step after which the rate stays at its lowest, or None if it never does."""
    if words(f"{SCHEDULE}.name") != "CosineAnnealing":
        return None
    steps, ratio = words(f"{SCHEDULE}.constant_steps"), words(f"{SCHEDULE}.constant_ratio")
    end, warmup = words.required("trainer.max_steps"), _warmup_steps(words)
    tail = steps or int((ratio or 0) * end)
    if not tail or end <= warmup:
        return None
    if end - tail <= warmup:
        raise _NoEqual(f"{SCHEDULE}.constant_steps", "leaves no steps for the decay")
    return int(end - tail)


def _in_tail(value: Callable[[int], str]) -> Rule:
    """Returns a rule for the phases of a cosine that ends in a constant tail."""
    return lambda words: _LEAVE if (step := _tail_start(words)) is None else value(step)


def _node_policy(words: _Words) -> Any:
    """NeMo's launcher chooses the nodes of a ramp. Without it, they stay the same."""
    if words("model.rampup_batch_size") is None:
        return _LEAVE
    return "fixed" if words("run.name") is None else "nemo"


def _checkpoint_steps(words: _Words) -> int | None:
    if not words("exp_manager.create_checkpoint_callback"):
        return None
    steps = words("exp_manager.checkpoint_callback_params.every_n_train_steps")
    interval = words("trainer.val_check_interval")  # NeMo saves after each validation.
    return steps or (interval if isinstance(interval, int) else None)


RULES: dict[str, Rule] = {
    **{key: _same(*same) for key, same in tables.SAME.items()},
    **{key: _chosen(*choice) for key, choice in tables.CHOICES.items()},
    "name": lambda words: words("run.name") or words("name") or _LEAVE,
    "model.ffn_hidden_size": lambda words: (
        words("model.ffn_hidden_size") or 4 * words.required("model.hidden_size")
    ),
    "model.rotary_scale_factor": _if_scaled("model.scale_factor"),
    "model.rotary_low_freq_factor": _if_scaled("model.low_freq_factor"),
    "model.rotary_high_freq_factor": _if_scaled("model.high_freq_factor"),
    "model.rotary_original_length": _if_scaled("model.old_context_len"),
    "model.qk_norm": _qk_norm,
    "model.sliding_window": _window,
    "model.vocab_size": _vocabulary,
    POLICY_KEY: _node_policy,
    "data.sequence_length": lambda words: (
        words("model.data.seq_length") or words.required("model.encoder_seq_length")
    ),
    "data.source": lambda words: "indexed" if _corpora(words) else "mock",
    "data.path": lambda words: paths[0] if len(paths := _corpora(words)) == 1 else None,
    "data.blend": lambda words: paths if len(paths := _corpora(words)) > 1 else None,
    "data.validation_path": _validation_path,
    "data.split": _split,
    "data.document_mask": _document_mask,
    "trainer.devices": _devices,
    "trainer.max_steps": _max_steps,
    "trainer.gradient_clip_val": _clipping,
    "trainer.val_every_steps": _val_every_steps,
    "trainer.val_samples": lambda words: None if words("trainer.limit_val_batches") else 0,
    "trainer.max_val_samples": _max_val_samples,
    "checkpoint.every_steps": _checkpoint_steps,
    # NeMo's inverse square root has no floor.
    "optim.min_lr": lambda words: 0.0 if _is_inverse(words) else words(f"{SCHEDULE}.min_lr"),
    "optim.warmup_steps": _warmup_steps,
    "phases.decay.until": _in_tail(lambda step: f"steps:{step}"),
    "phases.decay.schedule.decay_style": _in_tail(lambda _: "cosine"),
    "phases.tail.schedule.decay_style": _in_tail(lambda _: "constant"),
    "optim.beta1": _beta(1),
    "optim.beta2": _beta(2),
}
"""A rule for each of our keys.

If a file chooses an option of conf/model, a rule for the model applies only if the first word that
it asks for is given.
"""


def _misfits(words: _Words) -> Iterator[tuple[str, str]]:
    """Returns keys that have no equal because of other keys, and why."""
    is_learned = words("model.position_embedding_type") == "learned_absolute"
    length, positions = words("model.data.seq_length"), words("model.encoder_seq_length")
    if is_learned and length and positions not in (None, length):
        yield "model.encoder_seq_length", "a model has as many positions as a sample here"
    if is_learned and words("model.data.reset_position_ids"):
        yield "model.data.reset_position_ids", "positions run over the whole sample here"
    if not is_learned and words("model.rotary_percentage") not in (None, 1):
        yield "model.rotary_percentage", "RoPE turns whole heads here"
    if words("model.qkv_bias") and not words("model.bias"):
        yield "model.qkv_bias", "all linear layers have biases here, or none"
    activation, is_tanh = words("model.activation"), words("model.openai_gelu")
    if is_tanh and activation != "gelu":
        yield "model.openai_gelu", "no model here has this activation function"
    elif activation == "gelu" and not (is_tanh or words("model.bias_activation_fusion")):
        yield (
            "model.bias_activation_fusion",
            "GELU is the tanh approximation here, as in the fusion",
        )
    optimizer = words("model.optim.name")
    if words("model.do_layer_norm_weight_decay") and optimizer != tables.DISTRIBUTED[0]:
        yield "model.do_layer_norm_weight_decay", "norms and biases do not decay here"
    ends = words(f"{SCHEDULE}.max_steps")
    if optimizer not in tables.DISTRIBUTED and ends not in (None, words("trainer.max_steps")):
        yield f"{SCHEDULE}.max_steps", "the learning rate decays until the run ends here"
    if _is_inverse(words) and not _warmup_steps(words):
        yield f"{SCHEDULE}.warmup_steps", "this decay needs a warm-up here"
    for one in words("trainer.callbacks") or ():
        if not isinstance(one, dict) or _class_of(one.get(TARGET)) not in tables.CLASSES:
            yield "trainer.callbacks", "has one that is not known here"


def is_nemo(leaves: Mapping[str, Any]) -> bool:
    """Returns whether the keys are those of NeMo 1's training files or of NeMo 2's exports."""
    return any(key.startswith(_MARKS) for key in leaves) or _is_nemo_2(leaves)


def keys_by_setting(leaves: Mapping[str, Any]) -> dict[str, str]:
    """Returns the file's name of NeMo's key for each of our settings that takes the same values."""
    words = _words_of(leaves)
    names = {ours: name for ours, (name, _) in tables.SAME.items()}
    names |= {key: key for key in ("trainer.max_steps", "trainer.devices", "model.ffn_hidden_size")}
    found = {ours: words.spelled(name) for ours, name in names.items()}
    return {ours: key for ours, key in found.items() if not key.endswith(TARGET)}


def _is_nemo_2(leaves: Mapping[str, Any]) -> bool:
    targets = (value for key, value in leaves.items() if key.split(".")[-1] == TARGET)
    return any(str(value).startswith("nemo.") for value in targets)


def _class_of(target: Any) -> str:
    return str(target).rsplit(".", 1)[-1]


def _model_of(leaves: Mapping[str, Any]) -> tuple[str | None, Mapping[str, Any]]:
    """Returns the entry of `MODELS`: without an option if the file describes its model, and with
    None if its class is not known.
    """
    if _CLASS not in leaves:
        return "", {}
    return tables.MODELS.get(_class_of(leaves[_CLASS]), (None, tables.NOTHING_KNOWN))


def _words_of(leaves: Mapping[str, Any]) -> _Words:
    """Returns the keys of a file. In NeMo 2's, the class of the model adds the values it has."""
    if not _is_nemo_2(leaves):
        return _Words({key: (key, value) for key, value in leaves.items()})
    of_class = _model_of(leaves)[1].items()
    given: dict[str, tuple[str, Any]] = {word: (_CLASS, value) for word, value in of_class}
    # The strategy overrides the sizes that the model has.
    for key in sorted(leaves, key=lambda key: key.startswith("trainer.strategy.")):
        fitting = (start for start in tables.PREFIXES_2 if key.startswith(start))
        start = "" if key.endswith(TARGET) else next(fitting, "")
        renamed = tables.PREFIXES_2.get(start, "") + key.removeprefix(start)
        word, value = tables.NAMES_2.get(key, renamed), leaves[key]
        if key.endswith(TARGET):
            value = tables.NAMES_OF_CLASSES.get(_class_of(value), _class_of(value))
        elif key == "optim.config.optimizer":
            value = tables.NAMES_OF_CLASSES.get(str(value), value)
        given[word] = (key, value)
    if leaves.get("model.config.gated_linear_unit") and "model.activation" in given:
        key, value = given["model.activation"]
        given["model.activation"] = (key, {"silu": "swiglu"}.get(value, f"gated {value}"))
    if not any(word.startswith("model.tokenizer.") for word in given):
        given["model.tokenizer.type"] = (f"data.{TARGET}", "GPT2BPETokenizer")
    _, scheduler = given.get(f"{SCHEDULE}.name", ("", ""))
    return _Words(given, tables.DEFAULTS_2 | tables.DEFAULTS_OF_SCHEDULERS.get(scheduler, {}))


def _tried(rule: Rule, words: _Words) -> tuple[Any, _NoEqual | None]:
    """Returns what a rule gives, or why it gives nothing."""
    words.asked.clear()
    try:
        return rule(words), None
    except _NoEqual as error:
        return _LEAVE, error
    except (TypeError, ValueError, IndexError):
        return _LEAVE, _NoEqual([*words.asked][-1], "has a value of another type")
    except ArithmeticError:
        return _LEAVE, _NoEqual([*words.asked][-1], "has a value out of range")


def read_nemo(leaves: Mapping[str, Any]) -> ForeignRun:
    """Returns what a file of NeMo's means here.

    Args:
        leaves: values by dotted key, without a leading `training.`. Lists are leaves, an empty
            mapping is `{}`, and a value with references that cannot be followed is `Unresolved`.
    """
    words = _words_of(leaves)
    option = _model_of(leaves)[0]
    options = {"model": Decided(value=option, keys=(_CLASS,))} if option else {}
    settings: dict[str, Decided] = {}
    problems: list[tuple[str, str, str | None]] = []
    looked_at: set[str] = set()
    for key, rule in RULES.items():
        value, problem = _tried(rule, words)
        looked_at |= {*words.asked}
        is_shape = key.startswith("model.") and key not in _NOT_OF_CLASSES
        if option != "" and is_shape and next(iter(words.asked)) not in words.given:
            continue
        if problem is not None:
            problems.append((problem.word, problem.reason, key))
        elif value is not _LEAVE:
            settings[key] = Decided(value=value, keys=words.keys())
    settings.setdefault("data.source", Decided(value="mock", keys=()))
    misfits, problem = _tried(lambda words: [*_misfits(words)], words)
    if problem is not None:
        misfits = [(problem.word, problem.reason)]
    problems += [(word, reason, None) for word, reason in misfits]
    problems += [(word, reason, None) for word, reason in _active(words)]
    unsupported: dict[str, str] = {}
    instead: dict[str, tuple[str, ...]] = {}
    for word, reason, ours in problems:
        key = words.spelled(word)
        unsupported.setdefault(key, reason)
        instead[key] = (*instead.get(key, ()), *filter(None, [ours]))
    for key, one in settings.items():
        keys = tuple(name for name in one.keys if name not in unsupported)
        settings[key] = Decided(value=one.value, keys=keys)
    decided = {key for one in (*settings.values(), *options.values()) for key in one.keys}
    named = {key: word for word, (key, _) in words.given.items()}
    unchanged = []
    for key in leaves:
        name = named.get(key)  # None if another key overrides it
        if key in decided or key in unsupported:
            continue
        if name is None or name in looked_at or _is_without_effect(name, leaves[key]):
            unchanged.append(key)
        else:
            unsupported[key] = "is not known here, so what it changes is not known"
    return ForeignRun(
        settings=settings,
        options=options,
        unchanged=tuple(unchanged),
        unsupported=unsupported,
        instead={key: ours for key, ours in instead.items() if ours},
        notes={words.spelled(word): text for word, text in words.notes.items()},
        names=keys_by_setting(leaves),
    )


def _active(words: _Words) -> Iterator[tuple[str, str]]:
    """Returns the keys of `NEUTRAL` with a value that has no equal, and why."""
    for word, (neutral, reason) in tables.NEUTRAL.items():
        try:
            value = words(word)
        except _NoEqual as error:
            yield word, error.reason
            continue
        if value is not None and value not in neutral:
            yield word, reason if word in words.given else f"is {value} if left out, and {reason}"


def _is_without_effect(word: str, value: Any) -> bool:
    if word.endswith(TARGET) and _class_of(value) in tables.CLASSES | tables.MODELS.keys():
        return True
    is_listed = any(fnmatchcase(word, pattern) for pattern in tables.UNCHANGED)
    return is_listed or word in tables.NEUTRAL


FORMAT = FileFormat(
    name="NeMo",
    recognises=is_nemo,
    read=read_nemo,
    names=keys_by_setting,
    alone={one[0]: ours for table in (tables.SAME, tables.CHOICES) for ours, one in table.items()},
    neutral=tables.NEUTRAL,
)
