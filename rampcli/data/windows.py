"""Checks that corpora have the samples that a run needs. Refusals name numbers that work."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rampcli.batch.step_schedule import LENGTH_KEY
from rampcli.data.corpus import Corpus, TokenCorpus
from rampcli.data.files import cut_of, open_prefix, parts_of
from rampcli.data.order import Blend
from rampcli.errors import Remedy, UsageError, set_to, set_together, shown
from rampcli.settings.config import Config
from rampcli.settings.data import DataConfig, reads_files, validation_paths
from rampcli.settings.parallel import sequence_unit
from rampcli.settings.trainer import TrainerConfig

ENOUGH = 0.25
"""Share of the recipe's validation that a printed command does without."""
SHARES = (10, 20, 50)
"""Percentages of validation that a remedy may suggest, tried in this order."""


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
    """Returns the number of samples that a split leaves for validation."""
    return parts_of(whole, split)[1].windows


def _gives_both(whole: TokenCorpus, split: Sequence[float]) -> bool:
    """Returns whether a split leaves samples for training and for validation."""
    return all(part.windows for part in parts_of(whole, split)[:2])


def _shorter(config: Config, corpus: Corpus, samples: int) -> list[Remedy]:
    """Returns the remedy of shorter samples, if they can be short enough."""
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
