"""The command that trains on a corpus which was just built."""

from pathlib import Path

from rampcli import llm
from rampcli.config.checks.run import check_name
from rampcli.config.schema import Config
from rampcli.config.words import as_word, typeable
from rampcli.data.windows import fitting_words
from rampcli.errors import UsageError

RECIPE = "llama3_tiny"
"""A recipe that trains on any machine."""


def training_command(prefix: Path) -> str:
    """Returns a command that trains a small model on a corpus, exactly as it is printed.

    The run is named after the corpus, so that it is apart from runs on other data.

    Args:
        prefix: a corpus of `rampcli data build`.

    Raises:
        UsageError: the corpus cannot be read.
    """
    config = llm.from_factory(RECIPE)
    words = ["data=indexed", as_word("data.path", str(prefix))]
    if _can_name_a_run(prefix.name):
        words.append(as_word("name", prefix.name))
    words += map(typeable, fitting_words(prefix, config))
    return " ".join(("rampcli pretrain --factory", RECIPE, *words))


def _can_name_a_run(name: str) -> bool:
    try:
        check_name(Config(name=name))
    except UsageError:
        return False
    return True
