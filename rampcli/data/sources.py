"""Data sources: opens the corpora of `data.source`, and tells what settings depend on."""

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rampcli.config.extension_settings import extension_function
from rampcli.config.file_facts import CorpusFacts, FileFacts
from rampcli.data.corpus import MockCorpus
from rampcli.data.files import cut_of, in_memory
from rampcli.data.order import Blend, Corpora
from rampcli.data.pairs import PackedPairs
from rampcli.data.prompts import check_prompts
from rampcli.data.tokenizer import byte_tokenizer, vocab_size_of
from rampcli.data.windows import check_training, check_validation, larger_share
from rampcli.errors import set_to
from rampcli.extend import Documents
from rampcli.plugins.extensions import DATA_SOURCE
from rampcli.settings.config import Config
from rampcli.settings.data import SOURCES, DataConfig, corpora_of, validation_paths
from rampcli.settings.rl import is_rl

FOLDERS_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
"""Folders of the standard library that are not read."""
HELD_OUT_ONE_IN = 10


def open_corpora(config: Config) -> Corpora:
    """Opens the corpora of a configuration.

    Raises:
        UsageError: a file cannot be read or does not fit the configuration, or the source is an
            extension that is not known here.
    """
    extension = extension_function(DATA_SOURCE, config.data.source, config.data)
    corpora: Corpora = (
        resolve_name(SOURCES[config.data.source].opens)(config)
        if extension is None
        else _blended(config, extension(config))
    )
    for corpus in corpora.training.corpora:
        check_training(config, corpus)
    for blend in corpora.validation.values():
        samples = config.trainer.val_samples or 0
        check_validation(config, blend, samples, training=corpora.training)
    return corpora


def _blended(config: Config, documents: Documents) -> Corpora:
    """Returns documents that are held in memory as corpora."""
    name, cut = f"data.source={config.data.source}", cut_of(config)
    tokenizer = None if documents.tokenizer is None else Tokenizer.from_str(documents.tokenizer)
    training, validation = (
        in_memory(name, [*arrays], cut, tokenizer)
        for arrays in (documents.training, documents.validation)
    )
    return Corpora(
        training=Blend([training], seed=config.seed),
        validation={None: Blend([validation])},
        tokenizer=documents.tokenizer,
        vocab_size=None if tokenizer is None else vocab_size_of(tokenizer),
    )


def open_stdlib(config: Config) -> Corpora:
    """Opens the sources of Python's standard library; needs no download."""
    root = Path(sysconfig.get_path("stdlib"))
    files = {path.relative_to(root).as_posix(): path for path in _python_files(root)}
    parts: dict[bool, list[NDArray[Any]]] = {False: [], True: []}
    for name in sorted(files):
        parts[is_held_out(name)].append(np.frombuffer(files[name].read_bytes(), dtype=np.uint8))
    tokenizer = byte_tokenizer().to_str()
    return _blended(
        config, Documents(training=parts[False], validation=parts[True], tokenizer=tokenizer)
    )


def _python_files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in FOLDERS_LEFT_OUT]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def is_held_out(name: str) -> bool:
    """Returns True if a file is for validation: one in ten, by a hash of its relative path."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % HELD_OUT_ONE_IN == 0


def open_mock(config: Config) -> Corpora:
    """Opens random tokens; training and validation have different seeds."""
    training, validation = (
        MockCorpus(cut=cut_of(config), seed=seed) for seed in (2 * config.seed, 2 * config.seed + 1)
    )
    return Corpora(
        training=Blend([training], seed=config.seed), validation={None: Blend([validation])}
    )


def read_file_facts(config: Config) -> FileFacts:
    """Opens the corpora, checks that they can be trained on, and returns the facts about them.

    Args:
        config: checked, but `model.vocab_size` and `trainer.val_samples` may be null.

    Raises:
        UsageError: a corpus cannot be read, or does not fit the settings.
    """
    if is_rl(config):
        prompts = check_prompts(config)
        return FileFacts(
            name=_name(config),
            tokens=len(prompts.format.is_special),
            val_samples=len(prompts.validation),
            opened=True,
            corpora=()
            if config.data.task
            else (CorpusFacts(name=prompts.training.name, samples=len(prompts.training)),),
        )
    corpora = open_corpora(config)
    most = _most_samples(config, corpora)
    split = None if most else larger_share(corpora.training)
    return FileFacts(
        name=_name(config),
        tokens=corpora.vocab_size,
        val_samples=most,
        remedy=str(set_to(DataConfig.split, split)) if split else None,
        opened=True,
        fingerprints=corpora.training.fingerprints,
        corpora=() if config.data.task else _training_corpora(corpora.training),
    )


def _training_corpora(blend: Blend) -> tuple[CorpusFacts, ...]:
    return tuple(
        CorpusFacts(
            name=corpus.name,
            samples=corpus.windows,
            share=share,
            pairs=corpus.number_of_pairs if isinstance(corpus, PackedPairs) else None,
        )
        for corpus, share in zip(blend.corpora, blend.shares, strict=True)
    )


def _most_samples(config: Config, corpora: Corpora) -> int:
    """Returns how many samples, up to the limit, each validation can have."""
    limit, held_out = config.trainer.max_val_samples, corpora.validation.values()
    most = min(blend.most_samples(limit) for blend in held_out)
    if config.trainer.val_samples is None and limit and not most and validation_paths(config):
        for blend in held_out:  # corpora that were named for validation alone
            check_validation(config, blend, 1, training=corpora.training)
    return most


def _name(config: Config) -> str:
    """Returns the name of the corpora in notes."""
    found = [path for _, path in corpora_of(config)]
    if not found:
        return f"data.source={config.data.source}"
    return str(found[0]) if len(found) == 1 else f"{len(found)} corpora"
