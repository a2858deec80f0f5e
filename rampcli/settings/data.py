"""The settings of the data, the files of the corpora and their shares of the samples."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from math import gcd, lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rampcli.errors import Assignments, Remedy, UsageError, set_to, set_together, shown
from rampcli.files.hub import is_pinned
from rampcli.settings.facts import (
    COST,
    HELD_OUT,
    LEARNING,
    NOTHING,
    SAME_SAMPLES,
    SAMPLES,
    SPEED,
    SPLIT,
    VALIDATION,
    any_phase,
    whole_run,
)
from rampcli.settings.fields import Extensible, Keyed, keyed, setting, settings_class

if TYPE_CHECKING:
    from rampcli.settings.config import Config

_CORPUS_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")

MOST_SHARES = 2**31
"""Limit of the sum of whole shares, so that products with counts of samples fit in 64 bits."""
MOST_DIGITS = 30
MOST_SEQUENCE = 16_000_000
"""Longest sample. A wrong number is refused before anything is allocated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSource:
    """A source of samples.

    Attributes:
        opens: module and name of the function that opens the corpora of a configuration.
        about: what it contains, if it reads no files of the user.
        paths: remedies without a path, if it reads files of the user.
        takes: fields of `data` that name files or tasks and apply to it.
    """

    opens: str
    about: str = ""
    paths: tuple[Remedy, ...] = ()
    takes: tuple[str, ...] = ()


_HELD_OUT = ("validation_path", "validation")
SOURCES = {
    "stdlib": DataSource(
        opens="rampcli.data.sources:open_stdlib",
        about="source of Python's standard library, as bytes",
    ),
    "mock": DataSource(opens="rampcli.data.sources:open_mock", about="random tokens"),
    "text": DataSource(
        opens="rampcli.data.files:open_text",
        paths=(set_to("data.path", "FILE"), "a folder"),
        takes=("path", "blend", *_HELD_OUT),
    ),
    "indexed": DataSource(
        opens="rampcli.data.files:open_indexed",
        paths=(set_to("data.path", "PREFIX", note=", as given to `rampcli data build`"),),
        takes=("path", "blend", *_HELD_OUT),
    ),
    "pairs": DataSource(
        opens="rampcli.data.pairs:open_pairs",
        paths=(set_to("data.path", "FILE.jsonl"), set_to("data.task", "sort")),
        takes=("path", *_HELD_OUT, "task", "response_end"),
    ),
}
"""Sources by `data.source`.

To add a data source: an entry here, and a function in `rampcli/data/sources.py` that may raise a
`UsageError`.
"""
_CHOSEN_BY_FILES = ("path", "blend", *_HELD_OUT, "task", "response_end")
"""Fields of `data` that apply to some sources only."""

_SAMPLE = whole_run(SAMPLES, SAME_SAMPLES)


@keyed("data.")
@settings_class(kw_only=True)
class DataConfig(Extensible):
    """Where samples come from, and how they are cut and masked."""

    of_extensions: ClassVar = whole_run(LEARNING | COST, SAME_SAMPLES)
    source: Keyed[str] = setting(
        "stdlib",
        "Where samples come from. `indexed`: tokens written by `rampcli data build` or by"
        " Megatron's preprocessing. `text`: text files, read into memory. `pairs`: prompts and"
        " responses, of a file or a task. `stdlib`: the source of Python's standard library, as"
        " bytes. `mock`: random tokens.",
        _SAMPLE,
        choices=SOURCES,
        extensible=True,
    )
    sequence_length: Keyed[int] = setting(
        128,
        "Length of a sample.",
        any_phase(SAMPLES | VALIDATION | COST),
        unit="tokens",
        at_least=1,
        at_most=MOST_SEQUENCE,
    )
    micro_batch_size: Keyed[int | None] = setting(
        None,
        "Samples per data-parallel rank in one forward and backward pass. `null`: derived.",
        any_phase(SPLIT | COST).unread_by_rl(
            ", whose micro batches are counted in pairs: rl.micro_batch_size", "rl.micro_batch_size"
        ),
        unit="samples",
        at_least=1,
    )
    path: Keyed[str | None] = setting(
        None,
        "Corpus. For `indexed`, the common prefix of its two files; for `text`, a file or folder;"
        " for `pairs`, a file of JSON lines. `null`: no corpus, or the corpora in `blend`.",
        any_phase(LEARNING | HELD_OUT).replacing(["data.blend", "data.task"]),
        example="data/wiki",
    )
    blend: Keyed[list[str] | None] = setting(
        None,
        "Several corpora with weights, `[0.7,data/wiki,0.3,data/code]`; each path as in `path`."
        " `null`: one corpus.",
        any_phase(LEARNING | HELD_OUT).replacing(["data.path"]),
        example=[0.7, "data/wiki", 0.3, "data/code"],
    )
    split: Keyed[list[float]] = setting(
        [99.0, 1.0, 0.0],
        "Shares of each corpus for training, validation and testing. Documents are divided in their"
        " order; a single document is divided by tokens. `pairs` are divided by a hash of the"
        " prompt.",
        any_phase(SAMPLES | HELD_OUT),
        example=[98, 1, 1],
    )
    validation_path: Keyed[str | None] = setting(
        None,
        "Corpus that is used only for validation, instead of the share in `split`. `null`: use"
        " `split`.",
        any_phase(VALIDATION),
    )
    validation: Keyed[dict[str, str] | None] = setting(
        None,
        "Corpora that are used only for validation, `{wiki:data/wiki,code:data/code}`; each path as"
        " in `path`. Each is validated on its own, on `trainer.val_samples` samples. The second"
        " share in `split` is then not read. `null`: not set.",
        any_phase(VALIDATION).unread_by_rl(
            ", which evaluates one set of prompts", "data.validation_path"
        ),
        example={"wiki": "data/wiki", "code": "data/code"},
    )
    tokenizer: Keyed[str] = setting(
        "bytes",
        "Tokenizer for `text` and `pairs`: `bytes`, `chars` (the characters of the text), a"
        " `tokenizer.json` or its folder, or a model of the Hugging Face hub as `NAME@COMMIT`.",
        whole_run(LEARNING, "a token stands for the same text in the whole run"),
    )
    task: Keyed[Literal["sort", "reverse", "add"] | None] = setting(
        None,
        "Built-in task for `pairs`, instead of a file: `sort` or `reverse` the digits of a number,"
        " or `add` two numbers. `null`: the file in `path`.",
        any_phase(SAMPLES | HELD_OUT).replacing(["data.path", "data.blend"]),
        example="sort",
    )
    task_digits: Keyed[int] = setting(
        8,
        "Digits of each number of the task.",
        any_phase(SAMPLES | HELD_OUT),
        unit="digits",
        at_least=1,
        at_most=64,
    )
    response_end: Keyed[str | None] = setting(
        None,
        "Text of the token that ends a response of `pairs`. `null`: the tokenizer's end-of-document"
        " token, or a new line if its tokens are bytes or characters.",
        _SAMPLE,
        example="'<|im_end|>'",
    )
    chat_template: Keyed[Literal["auto", "none"]] = setting(
        "auto",
        "How a prompt of `pairs` is written. `auto`: as a user's message in the chat template that"
        " is beside the `tokenizer.json`, if there is one. `none`: as it is.",
        _SAMPLE,
    )
    eod_mask_loss: Keyed[bool] = setting(
        False,
        "Exclude each document's first token from the loss, because nothing predicts it.",
        any_phase(LEARNING | VALIDATION),
    )
    document_mask: Keyed[bool] = setting(
        False,
        "Restart attention and positions at each document, and exclude its first token from the"
        " loss. `pairs` need it.",
        any_phase(LEARNING | VALIDATION | COST),
    )
    pad_last_window: Keyed[bool] = setting(
        False,
        "Pad the tokens after the last whole sample to one more sample.",
        any_phase(SAMPLES | VALIDATION),
    )
    expansion_factor_real_data: Keyed[float | None] = setting(
        None,
        "Above 1: one host in this many reads data and sends the others their samples. `null`, up"
        " to 1, or MaxText's -1: every host reads its own.",
        any_phase(SPEED),
    )
    audit_order: Keyed[bool] = setting(
        False,
        "Record which samples the ranks read, as `order_hash` in `metrics.jsonl`.",
        whole_run(NOTHING, SAME_SAMPLES),
    )


def corpora_of(config: "Config") -> list[tuple[int, Path]]:
    """Returns the training corpora as (share, path).

    Shares are whole numbers in proportion to the weights.

    Raises:
        UsageError: `data.blend` is not `[weight,path,weight,path,...]`.
    """
    blend = config.data.blend
    if blend is None:
        return [] if config.data.path is None else [(1, Path(config.data.path).expanduser())]
    if len(blend) % 2 or not blend:
        raise _invalid_blend(blend, "is not a list of weights and paths in turn")
    weights = []
    for word in blend[::2]:
        try:
            weight = Decimal(word)
        except InvalidOperation:
            weight = Decimal("nan")
        if not weight.is_finite():
            raise _invalid_blend(blend, f"has {word} in place of a weight")
        if weight <= 0:
            raise _invalid_blend(blend, f"has the weight {word}, which is not above 0")
        if abs(weight.adjusted()) > MOST_DIGITS:
            raise _too_many_digits()
        weights.append(Fraction(weight))
    return list(
        zip(shares_of(weights), (Path(path).expanduser() for path in blend[1::2]), strict=True)
    )


def paths_of(config: "Config") -> dict[Path, str]:
    """Returns the paths of all corpora, each with the setting that names it."""
    paths = dict.fromkeys(
        (path for _, path in corpora_of(config)),
        DataConfig.path if config.data.blend is None else DataConfig.blend,
    )
    held_out = {
        path: DataConfig.validation_path if name is None else DataConfig.validation
        for name, path in validation_paths(config).items()
    }
    return held_out | paths


def validation_paths(config: "Config") -> dict[str | None, Path]:
    """Returns the corpora that are used only for validation, by name.

    The one of `data.validation_path` has the name None.
    """
    data = config.data
    paths = [*(data.validation or {}).items()]
    found: dict[str | None, Path] = {name: Path(path).expanduser() for name, path in paths}
    if data.validation_path is not None:
        found[None] = Path(data.validation_path).expanduser()
    return found


def validation_names(config: "Config") -> tuple[str | None, ...]:
    """Returns the names of the validation corpora. A run without named ones has one, None."""
    return tuple(config.data.validation or (None,))


def describe_data(config: "Config") -> str:
    """Returns what a run trains on: `mock (random tokens)`, `indexed data/wiki`, ..."""
    data = config.data
    if data.source in SOURCES and not reads_files(data.source):
        return f"{data.source} ({SOURCES[data.source].about})"
    if data.task is not None:
        return f"{data.source}, data.task={data.task}"
    if data.blend is not None:
        weighted = zip(data.blend[::2], data.blend[1::2], strict=True)
        return f"{data.source} " + " + ".join(f"{weight} x {path}" for weight, path in weighted)
    return data.source if data.path is None else f"{data.source} {data.path}"


def missing_corpora(config: "Config") -> list[str]:
    """Returns the settings that name corpora which this machine does not have, as KEY=PATH."""
    names = {path: name for name, path in validation_paths(config).items()}
    return [
        f"{key}={shown({names[path]: str(path)} if key == DataConfig.validation else str(path))}"
        for path, key in paths_of(config).items()
        if not any(os.path.exists(f"{path}{ending}") for ending in ("", ".idx"))
    ]


def missing_weights(config: "Config") -> list[str]:
    """Returns `model.init_from`, as KEY=PATH, if it names a folder that this machine lacks."""
    text = config.model.init_from
    if text is None or is_pinned(text) or os.path.exists(os.path.expanduser(text)):
        return []
    return [f"model.init_from={text}"]


def missing_here(config: "Config") -> list[str]:
    """Returns the settings that name files which this machine does not have, as KEY=PATH."""
    return missing_corpora(config) + missing_weights(config)


def shares_of(weights: Sequence[Fraction]) -> list[int]:
    """Returns the smallest whole numbers in proportion to the weights.

    Raises:
        UsageError: the weights have too many digits.
    """
    unit = lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * unit) for weight in weights]
    shares = [share // gcd(*whole) for share in whole]
    if sum(shares) > MOST_SHARES:
        raise _too_many_digits()
    return shares


def _too_many_digits() -> UsageError:
    return UsageError(
        "the weights of data.blend have too many digits",
        keys=(DataConfig.blend,),
        remedy="weights of up to nine digits",
    )


def _invalid_blend(blend: list[str], reason: str) -> UsageError:
    return UsageError(
        f"data.blend={shown(blend)} {reason}",
        keys=(DataConfig.blend,),
        remedy=set_to(DataConfig.blend, [0.7, "data/wiki", 0.3, "data/code"]),
    )


def lacks_path(config: "Config") -> bool:
    """Returns True if the source reads the user's files and none is given."""
    data = config.data
    given = (data.path, data.blend, data.task)
    return reads_files(data.source) and given == (None, None, None)


def reads_files(source: str) -> bool:
    """Returns whether a source of ours reads files of the user."""
    return source in SOURCES and bool(SOURCES[source].paths)


def check_source_paths(config: "Config") -> Iterator[UsageError]:
    """Checks that the source has the paths that it needs and no others."""
    data = config.data
    if data.source not in SOURCES:  # an extension uses the settings that it wants
        return
    given = {key: value for key in _CHOSEN_BY_FILES if (value := getattr(data, key)) is not None}
    for key in given:
        if key not in SOURCES[data.source].takes:
            taking = [name for name, one in SOURCES.items() if key in one.takes]
            yield UsageError(
                f"data.{key} does not apply to data.source={data.source}",
                keys=(f"data.{key}", DataConfig.source),
                remedy=[_with_source(source, key, given) for source in taking],
            )
            return
    if not reads_files(data.source):
        return
    places = tuple(f"data.{key}" for key in ("path", "blend", "task") if key in given)
    if not places:
        yield UsageError(
            f"data.source={data.source} needs data.path, which is not given",
            keys=(DataConfig.source, DataConfig.path),
            remedy=SOURCES[data.source].paths,
        )
    elif len(places) > 1:
        yield UsageError(
            f"{' and '.join(places)} are both given", keys=places, remedy="one of them"
        )
    elif data.validation_path is not None and data.validation is not None:
        yield UsageError(
            f"data.validation_path and {DataConfig.validation} are both given",
            keys=(DataConfig.validation_path, DataConfig.validation),
            remedy=set_to(
                DataConfig.validation_path, None, note=f", and its path in {DataConfig.validation}"
            ),
        )
    else:
        yield from _check_held_out(config, places)


def _with_source(source: str, key: str, given: Mapping[str, Any]) -> Assignments:
    """Returns the settings of another source, which takes a key that is given."""
    values: dict[str, Any] = {"data": source}
    places = ("path", "blend", "task")
    if key in places:
        values |= {f"data.{other}": None for other in places if other in given and other != key}
    elif reads_files(source) and not any(place in given for place in places):
        values[DataConfig.path] = "PATH"
    return set_together(values)


def _check_held_out(config: "Config", places: Sequence[str]) -> Iterator[UsageError]:
    """Checks the corpora that are used only for validation."""
    data = config.data
    try:
        trained = [path for _, path in corpora_of(config)]
    except UsageError as error:
        yield error
        return
    for name, path in validation_paths(config).items():
        key = DataConfig.validation_path if name is None else DataConfig.validation
        if name is not None and not _CORPUS_NAME.fullmatch(name):
            yield UsageError(
                f"{key}: {name!r} cannot name a corpus",
                keys=(key,),
                remedy="up to 100 letters, digits, - and _",
            )
        elif data.task is not None or path in trained:
            yield UsageError(
                f"{key} does not apply to data.task={data.task}"
                if data.task is not None
                else f"{key}: {path} is also a training corpus",
                keys=(key, *places),
                remedy=set_to(key, None, note=", so that data.split applies"),
            )


def check_document_mask(config: "Config") -> Iterator[UsageError]:
    """Checks that pairs, which are packed into samples, attend to themselves only."""
    if config.data.source == "pairs" and not config.data.document_mask:
        yield UsageError(
            "data.document_mask=false does not apply to data.source=pairs",
            keys=(DataConfig.document_mask, DataConfig.source),
            remedy=set_to(DataConfig.document_mask, True),
        )


def check_split(config: "Config") -> Iterator[UsageError]:
    """Checks that `data.split` has three shares: the first above 0, the others at least 0."""
    split = config.data.split
    if len(split) != 3 or min(split) < 0 or split[0] <= 0:
        yield UsageError(
            f"data.split={shown(split)} is not three shares: the first above 0, the others at"
            " least 0",
            keys=(DataConfig.split,),
            remedy=set_to(DataConfig.split, [98, 1, 1]),
        )
