"""Corpora by `data.source`: what is trained on, what is validated on, and what its tokens mean."""

import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rampcli.config.choices import DataSource
from rampcli.config.schema import Config
from rampcli.data.blend import Blend
from rampcli.data.corpus import Corpus, MockCorpus
from rampcli.data.files import Opened, cut_of, in_memory, open_indexed, open_text, paths_of
from rampcli.data.tokenizer import byte_tokenizer
from rampcli.errors import UsageError

LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
HELD_OUT_ONE_IN = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpora:
    """What a run reads.

    Attributes:
        training, validation: samples by their numbers.
        tokenizer: the `tokenizer.json` that tells what tokens mean; None where nobody knows.
    """

    training: Blend
    validation: Blend
    tokenizer: str | None


def open_corpora(config: Config) -> Corpora:
    """Open what a configuration reads.

    Raises:
        UsageError: a file cannot be read, or does not fit the configuration.
    """
    opened = SOURCES[config.data.source](config)
    validation = _blend(opened.validation, seed=None)
    for _, corpus in opened.training:
        _check_windows(config, "training", corpus, 1)
    for (_, corpus), wanted in zip(
        opened.validation, validation.counts(config.trainer.val_samples), strict=True
    ):
        _check_windows(config, "validation", corpus, wanted)
    return Corpora(
        training=_blend(opened.training, seed=config.seed),
        validation=validation,
        tokenizer=opened.tokenizer,
    )


def check_files(config: Config) -> None:
    """Refuse files that cannot be trained on, as far as can be seen at once: before any process is started.

    Raises:
        UsageError: an indexed file cannot be opened or is too short, or a text is not there.
    """
    if config.data.source is DataSource.indexed:
        open_corpora(config)
    for path, key in paths_of(config).items() if config.data.source is DataSource.text else ():
        if not (path.is_file() or path.is_dir()):
            missing = (
                f"{path} is not a file or a folder" if path.exists() else f"there is no {path}"
            )
            raise UsageError(missing, keys=(key,), remedy="a text file, or a folder of them")


def _blend(corpora: Sequence[tuple[int, Corpus]], *, seed: int | None) -> Blend:
    return Blend([corpus for _, corpus in corpora], [share for share, _ in corpora], seed=seed)


def _check_windows(config: Config, use: str, corpus: Corpus, wanted: int) -> None:
    if corpus.windows >= wanted:
        return
    remedies = [
        "a shorter data.sequence_length",
        "fewer trainer.val_samples" if use == "validation" else "data.pad_last_window=true",
    ]
    if (
        use == "validation"
        and config.data.validation_path is None
        and config.data.source in (DataSource.indexed, DataSource.text)
    ):
        remedies.append("data.validation_path=PATH")
    raise UsageError(
        f"the {use} corpus of {corpus.name} has {corpus.windows:,} samples of data.sequence_length={config.data.sequence_length};"
        f" {wanted:,} are wanted",
        keys=("data.sequence_length", "trainer.val_samples"),
        remedy=", or ".join(remedies),
    )


def _stdlib(config: Config) -> Opened:
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
        training=[(1, parts[0])], validation=[(1, parts[1])], tokenizer=tokenizer.to_str()
    )


def _python_files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [
            name for name in folders if name not in LEFT_OUT
        ]  # installed packages are many more files than the library
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def is_held_out(name: str) -> bool:
    """Whether a file belongs to the validation corpus, by a hash of its path relative to the library."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % HELD_OUT_ONE_IN == 0


def _mock(config: Config) -> Opened:
    training, validation = (
        MockCorpus(cut=cut_of(config), seed=seed) for seed in (2 * config.seed, 2 * config.seed + 1)
    )
    return Opened(training=[(1, training)], validation=[(1, validation)], tokenizer=None)


SOURCES: dict[DataSource, Callable[[Config], Opened]] = {
    DataSource.stdlib: _stdlib,
    DataSource.mock: _mock,
    DataSource.text: open_text,
    DataSource.indexed: open_indexed,
}
