"""The combinations of a sweep: every value of each setting that lists several."""

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from pathlib import Path

from rampcli.config.groups import group_names, option_names
from rampcli.config.layers import COMMAND_LINE, placed
from rampcli.config.reading import (
    MOST_VALUES,
    group_of,
    is_literal,
    is_plain,
    key_of,
    listed_values,
    names_search_path,
    override_of,
    parse,
)
from rampcli.config.values import typed
from rampcli.errors import ErrorReport, UsageError, set_to, shown
from rampcli.settings.by_key import find_setting
from rampcli.settings.launch import LaunchConfig
from rampcli.settings.optim import OptimConfig
from rampcli.words import SPELLINGS, unwrapped
from rampcli.words.hydra import SWEEP_DIR

LARGEST_SWEEP = 1000
LONGEST_FOLDER_NAME = 120
"""Characters of a folder's name before it is cut."""
NOT_VARIED = {
    "name": "each run is named after its values",
    "run_dir": "it is the folder of the whole sweep",
    "resume": "all runs of a sweep resume in the same way",
    "launch": "all runs of a sweep start in the same way",
    LaunchConfig.launcher: "all runs of a sweep start in the same way",
}
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Combination:
    """One run of a sweep.

    Attributes:
        words: `KEY=VALUE` words of the run, in the order of the command line.
        values: value of each setting that varies, by canonical key.
    """

    words: tuple[str, ...]
    values: Mapping[str, str]

    @property
    def folder(self) -> str:
        """Name of its folder: readable and safe in shells, and different for other values.

        The order of the settings does not change it. A `~` and a checksum follow a name that is cut
        or in which characters are replaced.
        """
        values = sorted(self.values.items())
        exact = ",".join(f"{key}={value}" for key, value in values)
        parts = ((_UNSAFE.sub("-", part) for part in pair) for pair in values)
        name = ",".join("=".join(pair) for pair in parts)
        if name == exact and len(name) <= LONGEST_FOLDER_NAME:
            return name
        return (
            f"{name[:LONGEST_FOLDER_NAME]}~{hashlib.sha256(repr(values).encode()).hexdigest()[:8]}"
        )

    def __str__(self) -> str:
        return joined_words(self.values)


def joined_words(values: Mapping[str, str]) -> str:
    """Returns values as a person reads them: `KEY=VALUE KEY=VALUE`."""
    return " ".join(f"{key}={value}" for key, value in values.items())


def combinations(
    words: Sequence[str],
    *,
    among: Sequence[Path] = (),
    also: Collection[str] = (),
    report: ErrorReport,
    varied_before: Collection[str] = (),
) -> list[Combination]:
    """Returns all combinations of values, as Hydra's BasicSweeper orders them.

    The values of the last setting change first.

    Args:
        words: `KEY=VALUE` words; `KEY=A,B,C`, `choice(A,B)` and `range(A,B,STEP)` list
            values, for a group also `glob(PATTERN)`.
        also: keys that are no settings and can be set: those of the files that are composed.
        varied_before: settings that have varied before. A single value of one of them is a value of
            the runs, too.
    """
    groups = group_names(among)
    slots: list[list[str]] = []
    fixed: set[str] = set()
    varied: dict[str, dict[str, str]] = {}  # value by word, by key
    for word in words:
        with report.noting(), placed(f"{word} ({COMMAND_LINE})"):
            key, texts = _swept_values(word, groups, among, also)
            canonical = SPELLINGS.get(key, key)
            if not texts and canonical in varied_before:
                texts = [word.partition("=")[2]]
            if canonical in varied or (texts and canonical in fixed):
                raise UsageError(f"{key} is given twice", keys=(key,), remedy="one list of values")
            if texts:
                typed_key = key_as_typed(word, key, groups)
                varied[canonical] = _values_by_word(key, texts, groups, typed_key=typed_key)
            else:
                fixed.add(canonical)
            slots.append([*varied.get(canonical, (word,))])
    if not varied and report.errors:
        return []  # the errors say why
    with report.noting():
        _check_number(varied)
        return [
            Combination(
                words=chosen,
                values={
                    key: values[word]
                    for key, values in varied.items()
                    for word in chosen
                    if word in values
                },
            )
            for chosen in product(*slots)
        ]
    return []


def _values_by_word(
    key: str, texts: Sequence[str], groups: Collection[str], *, typed_key: str
) -> dict[str, str]:
    """Returns the words that set a key, each with its value as `shown` writes it: 1e-3 is 0.001."""
    if key in NOT_VARIED:
        raise UsageError(
            f"{key} cannot vary in a sweep: {NOT_VARIED[key]}", keys=(key,), remedy="a single value"
        )
    words = [f"{typed_key}={text}" for text in texts]
    values = [_value(key, word, groups) or text for word, text in zip(words, texts, strict=True)]
    each = list(dict.fromkeys(values))
    if len(each) < len(values):
        twice = next(value for value in each if values.count(value) > 1)
        remedy = set_to(key, ",".join(each))
        raise UsageError(f"{key} lists {twice} twice", keys=(key,), remedy=remedy)
    return dict(zip(words, values, strict=True))


def _value(key: str, word: str, groups: Collection[str]) -> str | None:
    """Returns the value of a word as `shown` writes it, or None if it is wrong."""
    report = ErrorReport()
    read = parse([word], groups=groups, place=COMMAND_LINE, report=report, also=(key,))
    with report.noting():
        if key in read:
            return shown(read[key] if find_setting(key) is None else typed(key, read[key]))
    return None


def _check_number(varied: Mapping[str, Collection[object]]) -> None:
    runs = prod(map(len, varied.values()))
    if not varied:
        raise UsageError(
            "no setting lists several values",
            remedy=[set_to(OptimConfig.lr, "0.001,0.003"), "rampcli pretrain for a single run"],
        )
    if runs > LARGEST_SWEEP:
        raise UsageError(
            f"these values have {runs:,} combinations, and a sweep has at most"
            f" {LARGEST_SWEEP:,} runs",
            keys=tuple(varied),
            remedy="fewer values",
        )


def read_values(
    word: str, groups: Collection[str], also: Collection[str] = ()
) -> tuple[str, list[str]]:
    """Returns the key of a word like `KEY=8,16,32`, and its values as they are typed.

    Raises:
        UsageError: the word cannot be read, or it has no values or too many.
    """
    word = unwrapped(word)
    key = _key(word, groups, also)
    override = override_of(word)
    values = listed_values(override) if override.is_sweep_override() else [shown(override.value())]
    _check_count(word, key, values)
    return key, values


def key_as_typed(word: str, key: str, groups: Collection[str]) -> str:
    """Returns what stands before the `=` of a word: for a setting its key alone, without a `+`.

    The `+` adds a key to files of another system, or an option to a defaults list.
    """
    is_other = group_of(word, groups) is not None or find_setting(key) is None
    return word.partition("=")[0] if is_other else key


def _key(word: str, groups: Collection[str], also: Collection[str]) -> str:
    """Returns the key of a word: for a group with the section that its option is put into."""
    key = key_of(word, groups, also)
    typed_key = word.partition("=")[0].lstrip("+")
    return key if group_of(word, groups) is None else typed_key


def options_of(word: str, group: str, among: Sequence[Path]) -> list[str]:
    """Returns words that choose each option which a word lists for a group.

    Raises:
        UsageError: the word cannot be read.
    """
    _, texts = _swept_values(word, (group,), among, ())
    return [f"{word.partition('=')[0]}={text}" for text in texts] or [word]


def _check_count(word: str, key: str, values: Sequence[str]) -> None:
    if not values or len(values) > MOST_VALUES:
        raise UsageError(
            f"{word} must list 1 to {MOST_VALUES} values", keys=(key,), remedy=set_to(key, "A,B,C")
        )


def _swept_values(
    word: str, groups: Collection[str], among: Sequence[Path], also: Collection[str]
) -> tuple[str, list[str]]:
    """Returns the key of a word, and its values in Hydra's grammar if it lists values to sweep.

    The list is empty if the word gives a single value.
    """
    from hydra.core.override_parser.types import Glob, IntervalSweep
    from hydra.errors import HydraException

    if word.startswith("~") or names_search_path(word):
        return word.partition("=")[0], []
    key = _key(word, groups, (SWEEP_DIR, *also))
    if is_plain(word):
        return key, []
    try:
        override = override_of(word)
    except UsageError:
        text = word.partition("=")[2]
        if not is_literal(key, text):
            raise
        return key, text.split(",") if "," in text and text[0] not in "[{" else []
    if not override.is_sweep_override():
        return key, []
    sweep = override.value()
    if isinstance(sweep, IntervalSweep):
        raise UsageError(
            f"{word}: an interval does not list its values, and a sweep trains each value",
            keys=(key,),
            remedy=set_to(key, f"{sweep.start:g},{sweep.end:g}"),
        )
    if isinstance(sweep, Glob):
        options = option_names(key.partition("@")[0], among)
        if not (found := sweep.filter(options)):
            raise UsageError(
                f"{word}: no option of {key} matches",
                keys=(key,),
                remedy=set_to(key, ",".join(options) or "A,B,C"),
            )
        return key, found
    shuffles = getattr(sweep, "shuffle", False)
    if shuffles:
        sweep.shuffle = False
    try:
        values = list(islice(override.sweep_string_iterator(), MOST_VALUES + 1))
    except HydraException:
        values = []
    _check_count(word, key, values)
    if shuffles:
        raise UsageError(
            f"{word}: runs are trained in the order of their values",
            keys=(key,),
            remedy=set_to(key, ",".join(values)),
        )
    return key, values
