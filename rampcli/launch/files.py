"""Reads the files that decide settings of a run: corpora, checkpoints and starting weights."""

from dataclasses import replace
from pathlib import Path

from rampcli.checkpoint.starting_weights import starting_vocabulary
from rampcli.config.corpora import PATH_FORMS, missing_corpora
from rampcli.config.file_facts import VOCABULARY_KEY, FileFacts, without_files
from rampcli.config.schema import Config
from rampcli.config.schema.data import SOURCES
from rampcli.errors import UsageError
from rampcli.planning.run_plan import run_dir_of
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import newest_checkpoint


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
            f"{VOCABULARY_KEY}=null is the size of the corpus's tokenizer, and {facts.name} has no"
            " tokenizer",
            keys=(VOCABULARY_KEY, "data.path", "data.blend"),
            remedy=f"{VOCABULARY_KEY} of the tokenizer that encoded the corpus",
        )
    return replace(facts, weights=weights, folder=folder)


def read_corpora(config: Config) -> FileFacts:
    """Returns what the corpora of a run decide. Those of built-in sources have no files.

    Raises:
        RampcliError: a corpus cannot be read or does not fit the settings.
    """
    if config.data.source in SOURCES and config.data.source not in PATH_FORMS:
        return without_files(config)
    from rampcli.data.sources import read_file_facts  # which imports numpy and tokenizers

    return read_file_facts(config)


def _weights(config: Config, tokens: int) -> tuple[int | None, Path | None]:
    """Returns the vocabulary and the folder of the weights that a run resumes or starts from.

    A run directory whose vocabulary is too small belongs to another corpus, as a launch reports.
    """
    run = RunDirectory(run_dir_of(config))
    newest = newest_checkpoint(run)
    saved = None if newest is None else newest.manifest["settings"].get(VOCABULARY_KEY)
    if isinstance(saved, int) and saved >= tokens:
        return saved, run.path
    if config.model.init_from is None or newest is not None:
        return None, None
    return starting_vocabulary(config.model.init_from), Path(config.model.init_from)
