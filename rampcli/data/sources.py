"""Corpora by `data.source`: a training and a validation corpus each."""

import hashlib
import sysconfig
from collections.abc import Callable
from pathlib import Path

from rampcli.config.schema import Config, DataSource
from rampcli.data.corpus import Corpus, DocumentCorpus, MockCorpus
from rampcli.errors import UsageError

LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
HELD_OUT_ONE_IN = 10
BYTES = 256


def open_corpora(config: Config) -> tuple[Corpus, Corpus]:
    """The training and the validation corpus of a configuration.

    Raises:
        UsageError: the corpus does not fit the configuration.
    """
    training, validation = SOURCES[config.data.source](config)
    for name, corpus, wanted in (("training", training, 1), ("validation", validation, config.trainer.val_samples)):
        if corpus.windows < wanted:
            raise UsageError(
                f"the {name} corpus of data.source={config.data.source} has {corpus.windows} samples of"
                f" data.sequence_length={config.data.sequence_length}; {wanted} are wanted",
                keys=("data.sequence_length", "trainer.val_samples"),
                remedy="a shorter data.sequence_length, or fewer trainer.val_samples",
            )
    return training, validation


def _stdlib(config: Config) -> tuple[Corpus, Corpus]:
    if config.model.vocab_size < BYTES:
        raise UsageError(
            f"model.vocab_size={config.model.vocab_size} is too small for bytes",
            keys=("model.vocab_size",),
            remedy=f"model.vocab_size={BYTES}",
        )
    root = Path(sysconfig.get_path("stdlib"))
    files = {
        path.relative_to(root).as_posix(): path for path in root.rglob("*.py") if not LEFT_OUT.intersection(path.relative_to(root).parts)
    }
    training: list[bytes] = []
    validation: list[bytes] = []
    for name in sorted(files):
        (validation if is_held_out(name) else training).append(files[name].read_bytes())
    return (
        DocumentCorpus.of(training, sequence_length=config.data.sequence_length),
        DocumentCorpus.of(validation, sequence_length=config.data.sequence_length),
    )


def is_held_out(name: str) -> bool:
    """Whether a file belongs to the validation corpus, by a hash of its path relative to the library."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % HELD_OUT_ONE_IN == 0


def _mock(config: Config) -> tuple[Corpus, Corpus]:
    training, validation = (
        MockCorpus(vocab_size=config.model.vocab_size, sequence_length=config.data.sequence_length, seed=seed)
        for seed in (2 * config.seed, 2 * config.seed + 1)
    )
    return training, validation


SOURCES: dict[DataSource, Callable[[Config], tuple[Corpus, Corpus]]] = {DataSource.stdlib: _stdlib, DataSource.mock: _mock}
