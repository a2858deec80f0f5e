"""Leaves of config files as Hypothesis draws them: keys of the schema, values and YAML.

Each number and text is drawn once per tree, so that a value tells its line.
"""

from collections.abc import Mapping
from functools import cache
from itertools import count
from typing import Any, get_args, get_origin

from hypothesis import strategies as st

from rampcli.files import bundled
from rampcli.settings.by_key import Setting, nest, settings
from tests.config.plain_hydra import MISSING, compose_plainly

KEYS = (
    "seed",
    "name",
    "run_dir",
    "model.num_layers",
    "model.hidden_size",
    "model.ffn_hidden_size",
    "model.init_std",
    "model.bias",
    "model.rampup_batch_size",
    "data.sequence_length",
    "data.path",
    "data.split",
    "data.validation",
    "optim.min_lr",
    "optim.lr",
    "optim.weight_decay",
    "optim.warmup_steps",
    "schedule.decay_style",
    "schedule.wsd_decay_samples",
    "trainer.max_samples",
    "trainer.val_every_steps",
    "trainer.gradient_clip_val",
    "trainer.precision",
    "checkpoint.keep_last",
    "checkpoint.every_steps",
    "checkpoint.async",
    "generate.every_steps",
    "generate.prompts",
    "noise_scale.every_steps",
    "launch.grace_s",
    "launch.slurm.partition",
    "launch.slurm.account",
    "average.ema",
)
"""Settings that files and words set.

An interpolation refers to an earlier one, so that none is part of a cycle.
"""
UNSET = "profile.ranks", "generate.temperature", "launch.backoff_s"
"""Settings that no tree sets."""
SCALARS = (int, float, str, bool)


@cache
def bundled_keys(*words: str) -> frozenset[str]:
    """Returns the keys of bundled files that have a single value."""
    plain = compose_plainly(bundled("conf"), None, words)
    return frozenset(key for key, value in plain.items() if isinstance(value, SCALARS))


class Values:
    """Draws values of settings.

    Attributes:
        present: keys that interpolations may refer to. Hydra refuses the tree if one is missing.
        referenced: keys that an interpolation refers to.
        features: what the values contain, for statistics.
    """

    def __init__(self, draw: st.DrawFn, *, present: frozenset[str]) -> None:
        self.draw = draw
        self.present = set(present)
        self.referenced: set[str] = set()
        self.features: set[str] = set()
        self.numbers = count(1001)

    def value(self, key: str | None, setting: Setting) -> str:
        """Draws a value, as it is written in a file or a word.

        Args:
            key: of the value, or None if it is the key of several packages.
            setting: that takes the value.
        """
        form = self.draw(st.sampled_from(("literal",) * 5 + ("null",) + ("interpolation",) * 3))
        if form == "null" and setting.optional:
            self.features.add("null")
            return "null"
        targets = self.targets(key, setting) if form == "interpolation" else []
        return self.interpolation(key, setting, targets) if targets else self.literal(setting)

    def literal(self, setting: Setting) -> str:
        number, kind = next(self.numbers), setting.type
        if choices := setting.choices:
            return self.draw(st.sampled_from(choices))
        if kind is int:
            forms = [str(number), f"{number // 1000}_{number % 1000:03}"]
            return self.draw(st.sampled_from(forms + [f"{number}K"] * (setting.at_most is None)))
        if kind is float:
            return self.draw(st.sampled_from((f"0.{number}", f"{number}e-4", f"{number}.5")))
        item = f"text_{number}" if kind is str or str in get_args(kind) else str(number)
        if get_origin(kind) is dict:
            return f"{{{self.draw(st.sampled_from(('wiki', 'code', 'news')))}: {item}}}"
        return f"[{item}, 5]" if get_origin(kind) is list else item

    def targets(self, key: str | None, setting: Setting) -> list[str]:
        """Returns the present keys that an interpolation of a setting may refer to."""
        before = KEYS[: KEYS.index(key or "checkpoint.every_steps")]
        takes = {int: (int,), float: (float,), str: (str, int, float, bool)}
        kinds = takes.get(setting.type, ())
        return [one for one in before if one in self.present and settings()[one].type in kinds]

    def interpolation(self, key: str | None, setting: Setting, targets: list[str]) -> str:
        target = self.draw(st.sampled_from(targets))
        name = target
        if key is not None and self.draw(st.booleans()):
            self.features.add("relative interpolation")
            name = relative(target, key)
        if self.draw(st.integers(0, 3)) == 3:
            self.features.add("oc.select")
            unset = self.draw(st.booleans())
            name = f"oc.select:{self.draw(st.sampled_from(UNSET)) if unset else name}"
            name = f"{name},{self.literal(setting)}"
        else:
            self.features.add("interpolation")
        self.referenced.add(target)
        is_text = setting.type is str and "," not in name
        return f"{'run_' if is_text and settings()[target].type is not str else ''}${{{name}}}"


def relative(target: str, key: str) -> str:
    """Returns a key as an interpolation in the value of another key names it relatively."""
    sections, parts = key.split(".")[:-1], target.split(".")
    shared = 0
    while shared < min(len(sections), len(parts) - 1) and sections[shared] == parts[shared]:
        shared += 1
    return "." * (len(sections) - shared + 1) + ".".join(parts[shared:])


def rendered(draw: st.DrawFn, leaves: Mapping[str, str]) -> list[str]:
    """Returns lines of YAML with these values by dotted key."""
    lines: list[str] = []
    for name, value in nest(leaves).items():
        lines += draw(st.sampled_from(([], [], [""], ["# A comment: 5"])))
        lines += _entry(draw, name, value)
    return lines


def _entry(draw: st.DrawFn, name: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        if draw(st.integers(0, 4)) == 4 and not any(
            isinstance(one, dict) for one in value.values()
        ):
            pairs = [f"{key}: {_quoted(text)}" for key, text in value.items()]
            return [f"{name}: {{{', '.join(pairs)}}}"]
        inside = [line for key, one in value.items() for line in _entry(draw, key, one)]
        return [f"{name}:", *(f"  {line}" for line in inside)]
    if value.startswith("[") and draw(st.booleans()):
        return [f"{name}:", *(f"  - {item}" for item in value[1:-1].split(", "))]
    return [f"{name}: {value}"]


def _quoted(text: str) -> str:
    """Returns a value as a mapping in braces takes it."""
    return f"'{text}'" if "${" in text or text == MISSING else text
