"""Reads the facts about corpora that settings of a run depend on. Imports no torch."""

from rampcli.config.checks.rl import is_rl
from rampcli.config.corpora import corpora_of, validation_paths
from rampcli.config.file_facts import FileFacts
from rampcli.config.schema import Config
from rampcli.data.blend import Corpora
from rampcli.data.prompts import check_prompts
from rampcli.data.sources import open_corpora
from rampcli.data.windows import SPLIT_KEY, check_validation, larger_share
from rampcli.errors import set_to


def read_facts(config: Config) -> FileFacts:
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
        )
    corpora = open_corpora(config)
    most = _most_samples(config, corpora)
    split = None if most else larger_share(corpora.training)
    return FileFacts(
        name=_name(config),
        tokens=corpora.vocab_size,
        val_samples=most,
        remedy=str(set_to(SPLIT_KEY, split)) if split else None,
        opened=True,
        fingerprint=corpora.training.fingerprint,
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
