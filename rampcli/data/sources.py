"""Data sources: opens the corpora of `data.source`, and checks that a run has enough samples."""

import hashlib
import os
import sysconfig
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rampcli.batch.step_schedule import LENGTH_KEY
from rampcli.config.extension_settings import extension_function
from rampcli.config.file_facts import CorpusFacts, FileFacts
from rampcli.data.corpus import Corpus, MockCorpus, TokenCorpus
from rampcli.data.files import cut_of, in_memory, open_prefix, parts_of
from rampcli.data.order import Blend, Corpora
from rampcli.data.pairs import PackedPairs
from rampcli.data.prompts import check_prompts
from rampcli.data.tokenizer import byte_tokenizer, vocab_size_of
from rampcli.errors import Remedy, UsageError, set_to, set_together, shown
from rampcli.extend import Documents
from rampcli.plugins.extensions import SOURCE_KEY
from rampcli.settings.config import Config
from rampcli.settings.data import SOURCES, DataConfig, corpora_of, reads_files, validation_paths
from rampcli.settings.parallel import sequence_unit
from rampcli.settings.rl import is_rl
from rampcli.settings.trainer import TrainerConfig

FOLDERS_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
"""Folders of the standard library that are not read."""
HELD_OUT_ONE_IN = 10
ENOUGH = 0.25
"""Share of the recipe's validation that a printed command does without."""
SHARES = (10, 20, 50)
"""Percentages of validation that a remedy may suggest, tried in this order."""


def open_corpora(config: Config) -> Corpora:
    """Opens the corpora of a configuration.

    Raises:
        UsageError: a file cannot be read or does not fit the configuration, or the source is an
            extension that is not known here.
    """
    extension = extension_function(SOURCE_KEY, config.data.source, config.data)
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
    names = list[str]()
    for folder, folders, found in os.walk(root):
        folders[:] = [name for name in folders if name not in FOLDERS_LEFT_OUT]
        paths = (Path(folder, name) for name in found if name.endswith(".py"))
        names += [path.relative_to(root).as_posix() for path in paths]
    parts: dict[bool, list[NDArray[Any]]] = {False: [], True: []}
    for name in sorted(names):
        content = np.frombuffer((root / name).read_bytes(), dtype=np.uint8)
        parts[is_held_out(name)].append(content)
    tokenizer = byte_tokenizer().to_str()
    return _blended(
        config, Documents(training=parts[False], validation=parts[True], tokenizer=tokenizer)
    )


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
            tokenizer=_hash_of(prompts.format.tokenizer),
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
        tokenizer=_hash_of(corpora.tokenizer),
        val_samples=most,
        remedy=str(set_to(DataConfig.split, split)) if split else None,
        opened=True,
        fingerprints=corpora.training.fingerprints,
        corpora=() if config.data.task else _training_corpora(corpora.training),
    )


def _hash_of(text: str | None) -> str | None:
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()


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
    found = [path for _, path in corpora_of(config)]
    if not found:
        return f"data.source={config.data.source}"
    return str(found[0]) if len(found) == 1 else f"{len(found)} corpora"


def check_training(config: Config, corpus: Corpus) -> None:
    """Checks that a training corpus has a sample.

    Raises:
        UsageError: it has none.
    """
    if corpus.windows:
        return
    if isinstance(corpus, TokenCorpus) and corpus.end - corpus.first < 2:
        raise UsageError(
            f"the training corpus of {corpus.name} has {corpus.end - corpus.first} tokens",
            keys=(DataConfig.path if config.data.blend is None else DataConfig.blend,),
            remedy="a corpus with text",
        )
    remedies = _shorter(config, corpus, 1)
    remedies += [] if config.data.pad_last_window else [set_to(DataConfig.pad_last_window, True)]
    raise _too_few(config, "training", corpus, 1, (LENGTH_KEY,), remedies)


def check_validation(config: Config, blend: Blend, samples: int, *, training: Blend) -> None:
    """Checks that the validation corpora have the samples of a validation.

    Args:
        training: the training corpora, for remedies.

    Raises:
        UsageError: they have fewer.
    """
    for corpus, needed in zip(blend.corpora, blend.counts(samples), strict=True):
        if corpus.windows < needed:
            most, keys = blend.most_samples(samples), [TrainerConfig.val_samples, LENGTH_KEY]
            remedies = [set_to(TrainerConfig.val_samples, most), *_shorter(config, corpus, needed)]
            if validation_paths(config):
                keys.insert(
                    0,
                    DataConfig.validation if config.data.validation else DataConfig.validation_path,
                )
            elif reads_files(config.data.source):
                split = None if most else larger_share(training)
                if split:
                    remedies.append(
                        set_together({DataConfig.split: split, TrainerConfig.val_samples: None})
                    )
                remedies.append(set_to(DataConfig.validation_path, "PATH"))
            raise _too_few(config, "validation", corpus, needed, tuple(keys), remedies)


def larger_share(training: Blend) -> list[int] | None:
    """Returns a `data.split` that leaves samples for validation, or None.

    Args:
        training: the training parts of corpora that are split.
    """
    wholes = [
        replace(corpus, first=0, end=len(corpus.tokens))
        for corpus in training.corpora
        if isinstance(corpus, TokenCorpus)
    ]
    for share in SHARES if wholes else ():
        split = [100 - share, share, 0]
        if all(_gives_both(whole, split) for whole in wholes):
            return split
    return None


def fitting_words(prefix: Path, config: Config) -> list[str]:
    """Returns the words with which a recipe trains on an indexed corpus, however small it is.

    A small corpus gives a larger share to validation, and validates on all of it.

    Raises:
        UsageError: the corpus cannot be read.
    """
    whole, _ = open_prefix(prefix, cut_of(config))
    wanted = config.trainer.max_val_samples or 1
    if _gives_both(whole, config.data.split) and (
        _held_out(whole, config.data.split) >= wanted * ENOUGH
    ):
        return []
    if split := larger_share(Blend([whole])):
        found = _held_out(whole, split)
        fewer = [f"{TrainerConfig.max_val_samples}={found}"] if found < wanted else []
        return [f"{DataConfig.split}={shown(split)}", *fewer]
    training = parts_of(whole, config.data.split)[0]
    return [] if training.windows else [*map(str, _shorter(config, training, 1))]


def _held_out(whole: TokenCorpus, split: Sequence[float]) -> int:
    return parts_of(whole, split)[1].windows


def _gives_both(whole: TokenCorpus, split: Sequence[float]) -> bool:
    return all(part.windows for part in parts_of(whole, split)[:2])


def _shorter(config: Config, corpus: Corpus, samples: int) -> list[Remedy]:
    if not isinstance(corpus, TokenCorpus):
        return [f"a shorter {LENGTH_KEY}"]
    longest = corpus.longest_sequence(samples)
    longest -= longest % sequence_unit(config)
    return [set_to(LENGTH_KEY, longest)] if longest else []


def _too_few(
    config: Config,
    use: str,
    corpus: Corpus,
    needed: int,
    keys: tuple[str, ...],
    remedies: list[Remedy],
) -> UsageError:
    return UsageError(
        f"the {use} corpus of {corpus.name} has {corpus.windows:,} samples of"
        f" {LENGTH_KEY}={config.data.sequence_length}; needed: {needed:,}",
        keys=keys,
        remedy=remedies,
    )
