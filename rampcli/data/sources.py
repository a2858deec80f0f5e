"""Data sources: opens the corpora that `data.source` names."""

import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rampcli.config.checks.rl import is_rl
from rampcli.config.own_settings import own_function
from rampcli.config.schema import Config
from rampcli.data.blend import Blend
from rampcli.data.corpus import Corpus, MockCorpus
from rampcli.data.files import (
    Opened,
    cut_of,
    in_memory,
    open_indexed,
    open_text,
)
from rampcli.data.pairs import open_pairs
from rampcli.data.prompts import check_prompts
from rampcli.data.special_tokens import SpecialTokens
from rampcli.data.tokenizer import byte_tokenizer, vocab_size_of
from rampcli.data.windows import check_training, check_validation
from rampcli.extend import Documents
from rampcli.extensions import DATA_SOURCE

LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
"""Folders of the standard library that are not read."""
HELD_OUT_ONE_IN = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpora:
    """The corpora of a run.

    Attributes:
        training: samples by index.
        validation: samples by index, of each corpus by name; None if it has no name.
        tokenizer: contents of `tokenizer.json`; None if unknown.
        vocab_size: size of its vocabulary; None if unknown.
        special_tokens: special tokens of the texts, as far as they are known.
    """

    training: Blend
    validation: Mapping[str | None, Blend]
    tokenizer: str | None
    vocab_size: int | None
    special_tokens: SpecialTokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A kind of corpora, one for each `data.source`.

    Attributes:
        open: opens training and validation corpora, or raises a `UsageError`.
        check: raises a `UsageError` if the files cannot be trained on. It runs before any process
            is started. It returns the corpora if it opens them.
    """

    open: Callable[[Config], Opened]
    check: Callable[[Config], Corpora | None] = lambda _: None


def open_corpora(config: Config) -> Corpora:
    """Opens the corpora of a configuration.

    Raises:
        UsageError: a file cannot be read, or does not fit the configuration.
    """
    opened = _source_of(config).open(config)
    validation = {name: _blend(corpora, seed=None) for name, corpora in opened.validation.items()}
    for _, corpus in opened.training:
        check_training(config, corpus)
    training = _blend(opened.training, seed=config.seed)
    for blend in validation.values():
        check_validation(config, blend, config.trainer.val_samples or 0, training=training)
    return Corpora(
        training=training,
        validation=validation,
        tokenizer=opened.tokenizer,
        vocab_size=opened.vocab_size,
        special_tokens=opened.special_tokens,
    )


def check_files(config: Config) -> str | None:
    """Checks, before any process is started, that the corpora can be trained on.

    Returns:
        The fingerprint of the training corpora, or None if they were not opened.

    Raises:
        UsageError: a file cannot be opened or is too short, or has tokens that the model does not
            have.
    """
    corpora = _source_of(config).check(config)
    return None if corpora is None else corpora.training.fingerprint


def _source_of(config: Config) -> Source:
    """Returns the data source of a configuration.

    Raises:
        UsageError: it is an extension that is not known here.
    """
    own = own_function(DATA_SOURCE, config.data.source, config.data)
    if own is None:
        return SOURCES[config.data.source]
    return Source(open=partial(_open_documents, own), check=open_corpora)


def _open_documents(read: Callable[[Config], Documents], config: Config) -> Opened:
    """Opens the documents of an extension."""
    documents, cut = read(config), cut_of(config)
    name = f"data.source={config.data.source}"
    tokenizer = None if documents.tokenizer is None else Tokenizer.from_str(documents.tokenizer)
    training, validation = (
        in_memory(name, [*arrays], cut, tokenizer)
        for arrays in (documents.training, documents.validation)
    )
    return Opened(
        training=[(1, training)],
        validation={None: [(1, validation)]},
        tokenizer=documents.tokenizer,
        vocab_size=None if tokenizer is None else vocab_size_of(tokenizer),
    )


def _blend(corpora: Sequence[tuple[int, Corpus]], *, seed: int | None) -> Blend:
    return Blend([corpus for _, corpus in corpora], [share for share, _ in corpora], seed=seed)


def _open_stdlib(config: Config) -> Opened:
    """Opens the sources of Python's standard library; needs no download."""
    root = Path(sysconfig.get_path("stdlib"))
    files = {path.relative_to(root).as_posix(): path for path in _python_files(root)}
    training: list[NDArray[Any]] = []
    validation: list[NDArray[Any]] = []
    for name in sorted(files):
        (validation if is_held_out(name) else training).append(
            np.frombuffer(files[name].read_bytes(), dtype=np.uint8)
        )
    tokenizer = byte_tokenizer()
    parts = [
        in_memory("data.source=stdlib", documents, cut_of(config), tokenizer)
        for documents in (training, validation)
    ]
    return Opened(
        training=[(1, parts[0])],
        validation={None: [(1, parts[1])]},
        tokenizer=tokenizer.to_str(),
        vocab_size=vocab_size_of(tokenizer),
    )


def _python_files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def is_held_out(name: str) -> bool:
    """Returns True if a file is for validation: one in ten, by a hash of its relative path."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % HELD_OUT_ONE_IN == 0


def _open_mock(config: Config) -> Opened:
    """Opens random tokens; training and validation have different seeds."""
    training, validation = (
        MockCorpus(cut=cut_of(config), seed=seed) for seed in (2 * config.seed, 2 * config.seed + 1)
    )
    return Opened(
        training=[(1, training)],
        validation={None: [(1, validation)]},
        tokenizer=None,
        vocab_size=None,
    )


def _check_pairs(config: Config) -> Corpora | None:
    """Checks pairs for supervised training, or the prompts of reinforcement learning."""
    if not is_rl(config):
        return open_corpora(config)
    check_prompts(config)
    return None


SOURCES = {
    "stdlib": Source(open=_open_stdlib),
    "mock": Source(open=_open_mock),
    "text": Source(open=open_text, check=open_corpora),
    "indexed": Source(open=open_indexed, check=open_corpora),
    "pairs": Source(open=open_pairs, check=_check_pairs),
}
"""Data sources by `data.source`."""
