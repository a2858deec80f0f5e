"""Reads the files that decide settings of a run: corpora, checkpoints and starting weights."""

import sys
from dataclasses import replace
from pathlib import Path

from rampcli.checkpoint.starting_weights import starting_vocabulary
from rampcli.config.file_facts import FileFacts, without_files
from rampcli.data.texts import text_files
from rampcli.errors import UsageError, visible
from rampcli.launch.doctor.check import format_bytes
from rampcli.planning.run_plan import run_dir_of
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import newest_checkpoint
from rampcli.settings.config import Config
from rampcli.settings.data import SOURCES, DataConfig, missing_corpora, paths_of, reads_files
from rampcli.settings.model import ModelConfig

LONG_TO_ENCODE_BYTES = 5_000_000
"""Size from which on encoding text takes some seconds."""
LONG_BY_NUMPY_BYTES = 200_000_000
"""The same for tokenizers whose tokens are bytes or characters."""


def encoding_note(config: Config) -> str | None:
    """Returns which files are encoded to read the corpora, or None if that does not take long."""
    source, tokenizer = config.data.source, config.data.tokenizer
    if source not in ("text", "pairs") or missing_corpora(config):
        return None
    paths = [*paths_of(config)]
    size_bytes = sum(file.stat().st_size for path in paths for file in text_files(path))
    by_numpy = source == "text" and tokenizer in ("bytes", "chars")
    if size_bytes < (LONG_BY_NUMPY_BYTES if by_numpy else LONG_TO_ENCODE_BYTES):
        return None
    named = paths[0] if len(paths) == 1 else f"{len(paths)} corpora"
    hint = "; `rampcli data build` would do that once" if source == "text" else ""
    return visible(f"encoding {named}: {format_bytes(size_bytes)}{hint}")


def read_files(config: Config) -> FileFacts:
    """Returns what the files of a run decide about its settings.

    Corpora that this machine does not have are read only if the vocabulary depends on them. So a
    plan of other settings can be made anywhere.

    Raises:
        UsageError: a file cannot be read or does not fit the settings, or no file tells the size of
            the vocabulary.
    """
    sized = config.model.vocab_size is not None
    is_absent = sized and missing_corpora(config)
    facts = without_files(config) if is_absent else read_corpora(config)
    if sized:
        return facts
    weights, folder = _weights(config, facts.tokens or 0)
    if facts.tokens is None and weights is None:
        raise UsageError(
            f"{ModelConfig.vocab_size}=null is the size of the corpus's tokenizer, and"
            f" {facts.name} has no"
            " tokenizer",
            keys=(ModelConfig.vocab_size, DataConfig.path, DataConfig.blend),
            remedy=f"{ModelConfig.vocab_size} of the tokenizer that encoded the corpus",
        )
    return replace(facts, weights=weights, folder=folder)


def read_corpora(config: Config) -> FileFacts:
    """Returns what the corpora of a run decide. Those of built-in sources have no files.

    A line on standard error says so before text is encoded for some seconds.

    Raises:
        RampcliError: a corpus cannot be read or does not fit the settings.
    """
    if config.data.source in SOURCES and not reads_files(config.data.source):
        return without_files(config)
    if (note := encoding_note(config)) is not None:
        print(note, file=sys.stderr)  # noqa: T201
    from rampcli.data.sources import read_file_facts  # which imports numpy and tokenizers

    return read_file_facts(config)


def _weights(config: Config, tokens: int) -> tuple[int | None, Path | None]:
    """Returns the vocabulary and the folder of the weights that a run resumes or starts from.

    A run directory whose vocabulary is too small belongs to another corpus, as a launch reports.
    """
    run = RunDirectory(run_dir_of(config))
    newest = newest_checkpoint(run)
    saved = None if newest is None else newest.manifest["settings"].get(ModelConfig.vocab_size)
    if isinstance(saved, int) and saved >= tokens:
        return saved, run.path
    if config.model.init_from is None or newest is not None:
        return None, None
    return starting_vocabulary(config.model.init_from), Path(config.model.init_from)
