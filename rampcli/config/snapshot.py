"""The snapshot of a configuration in a run directory: every setting, and where it was set.

Workers read it.
"""

from pathlib import Path
from typing import Any

from rampcli.batch.plan import GLOBAL_KEY
from rampcli.config.checks import CHECKS
from rampcli.config.checks.ranges import check_ranges
from rampcli.config.file_facts import VALIDATION_KEY, VOCABULARY_KEY
from rampcli.config.layers import DEFAULT, Entry, Layer, Precedence, Stack, placed, stack_of
from rampcli.config.phase_keys import UNTIL, key_inside, split_phase_key
from rampcli.config.phases import phase_configs
from rampcli.config.schema import Config
from rampcli.config.settings import find_setting, flatten, is_of_extension, leaves, nest, settings
from rampcli.config.unknown_keys import unknown_key
from rampcli.errors import Report, UsageError, printable, shown
from rampcli.files import plain_yaml
from rampcli.words import FOREIGN, SPELLINGS, maxtext_mesh

MOST_BYTES = 200_000
_ESCAPED = "$\u00a0{"
"""Stands for `${` in a place while OmegaConf, which would read it as a reference, writes YAML."""
PLACES = "set_by"
"""The section with the place of each setting that is not left at its default."""
IDENTITY = (
    "seed",
    "model.",
    "data.source",
    "data.sequence_length",
    "data.split",
    "data.pad_last_window",
    "data.task",
    "data.task_digits",
    "data.response_end",
    "data.chat_template",
    "rampup.semantics",
    "rampup.decrease_batch_size_if_needed",
    "optim.optimizer",
    "rl.generations_per_prompt",
    "rl.temperature",
    "rl.top_k",
    "rl.top_p",
    "rl.max_response_tokens",
    "rl.reward",
)
"""Settings, and sections that end with a dot."""
NOT_IDENTITY = ("model.huggingface_type",)
"""Settings of these sections that change no tensor."""
DECIDING = (
    *IDENTITY,
    *("data.", "loss.", "optim.", "schedule."),
    *("trainer.precision", "trainer.matmul_precision", "trainer.gradient_clip_val"),
)
"""Settings, and sections that end with a dot, that decide what a run learns."""
NOT_DECIDING = ("data.micro_batch_size", "data.expansion_factor_real_data", "data.audit_order")
"""Settings of these sections that do not change what a run learns."""


def identity(config: Config) -> dict[str, Any]:
    """Returns the settings that decide what a checkpoint's tensors and consumed samples mean.

    A resume must not change them. In reinforcement learning, a sample is a prompt with its
    responses and their rewards.
    """
    return {
        key: value
        for key, value in leaves(config)
        if key not in NOT_IDENTITY and (key in IDENTITY or f"{key.partition('.')[0]}." in IDENTITY)
    }


def decides(key: str) -> bool:
    """Returns whether a setting of a run, or of one of its phases, decides what the run learns."""
    key = key_inside(key)
    if key == UNTIL:
        return True
    return key not in NOT_DECIDING and (key in DECIDING or f"{key.partition('.')[0]}." in DECIDING)


def to_yaml(config: Config) -> str:
    """Returns a resolved configuration as YAML: its settings, then the places that set them."""
    from omegaconf import OmegaConf

    stack = stack_of(config)
    values = dict(leaves(config))
    places = {key: printable(stack.entry(key).place) for key in values}
    # A reference in a place stays text, also that of a folder named ${x.
    set_by = {
        key: place.replace("${", _ESCAPED) for key, place in places.items() if place != DEFAULT
    }
    content = nest(values) | ({PLACES: set_by} if set_by else {})
    return OmegaConf.to_yaml(OmegaConf.create(content)).replace(_ESCAPED, "${")


def unit(path: Path) -> str:
    """Returns what the run of a snapshot counts: samples or prompts.

    The settings are not checked: a run may be looked at whose files are gone.
    """
    try:
        return unit_in(read_tree(path))
    except UsageError:
        return "samples"


def unit_in(tree: dict[str, Any]) -> str:
    """Returns what the run of a snapshot counts, "prompts" or "samples", from its content."""
    rl = tree.get("rl")
    is_rl = isinstance(rl, dict) and rl.get("generations_per_prompt") is not None
    return "prompts" if is_rl else "samples"


def read_tree(path: Path) -> dict[str, Any]:
    """Returns the content of a snapshot, unchecked.

    Raises:
        UsageError: the file does not exist or is not plain YAML.
    """
    try:
        # The places may name references; typing the values refuses any there.
        _, root = plain_yaml.read(path, most_bytes=MOST_BYTES, allows_references=True)
        return plain_yaml.values_of(root)
    except plain_yaml.NotPlainError as error:
        at = "" if error.line is None else f", line {error.line}"
        raise UsageError(f"cannot read {path}{at}: {error.reason}") from error


def read(path: Path) -> Config:
    """Returns the configuration of a snapshot.

    Raises:
        UsageError: the file does not exist or is not plain YAML; or as `config_in`.
    """
    return config_in(read_tree(path), path)


def config_in(tree: dict[str, Any], path: Path) -> Config:
    """Returns the configuration of a snapshot from its content.

    Its settings are checked exactly as typed ones are. A snapshot that names no places, as earlier
    versions wrote it, is itself the place of its settings.

    Args:
        tree: content of the snapshot. The places are removed from it.
        path: the snapshot, for messages.

    Raises:
        UsageError: settings are unknown, of the wrong type, out of range, or contradict each other.
    """
    report = Report()
    places = tree.pop(PLACES, {})
    with report.noting(), placed(str(path)):
        _check_places(places)
    values = flatten(tree)
    # A run can be looked at without its extensions. They type their settings when they are used.
    own = {key: Entry(values.pop(key), str(path)) for key in list(values) if is_of_extension(key)}
    for word in FOREIGN.intersection(values):
        with report.noting(), placed(str(path)):
            _check_unused(word, values.pop(word))
    layer = Layer.of(str(path), Precedence.USER, values, report=report)
    report.close()
    entries = {
        key: Entry(entry.value, printable(places[key])) if key in places else entry
        for key, entry in {**layer.entries, **own}.items()
        if key in places or key in own or _differs_from_default(key, entry.value)
    }
    config = Stack(overrides=(Layer(layer.name, layer.precedence, entries),)).config()
    applying = [one for _, _, one in phase_configs(config)] or [config]
    for checks in ((check_ranges,), CHECKS):  # the others rely on the ranges
        for check in checks:
            for misfit in (misfit for one in applying for misfit in check(one)):
                misfit.set_by = misfit.set_by or (str(path),)
                report.errors.append(misfit)
        report.close()
    for one in applying:
        _check_complete(one, path)
    return config


def _differs_from_default(key: str, value: Any) -> bool:
    """Returns whether a value must be set. That of a phase must, as the run may have another."""
    return split_phase_key(key) is not None or value != settings()[key].default


def _check_complete(config: Config, path: Path) -> None:
    """Checks that settings which files decide are numbers, so that workers do not read them."""
    for key in (VOCABULARY_KEY, VALIDATION_KEY):
        if dict(leaves(config))[key] is None:
            raise UsageError(
                f"{key}=null in {path}: a snapshot has the number", keys=(key,), set_by=(str(path),)
            )


def _check_unused(word: str, value: Any) -> None:
    if value is not None:
        raise UsageError(
            f"{word}={shown(value)} is a spelling of another system, which a snapshot cannot have",
            keys=(word,),
            remedy=(SPELLINGS | maxtext_mesh.KEYS).get(word, GLOBAL_KEY),
        )


def _check_places(places: Any) -> None:
    if not isinstance(places, dict):
        raise UsageError(f"{PLACES} is not a section")
    for key, place in places.items():
        if find_setting(key) is None and not is_of_extension(key):
            raise unknown_key(key)
        if not isinstance(place, str):
            raise UsageError(f"{PLACES}: the place of {key} is not a string", keys=(key,))
