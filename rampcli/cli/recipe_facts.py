"""What a recipe is made of: its size, options, settings and source."""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rampcli import llm
from rampcli.checkpoint.starting_weights import takes_model_from_folder, with_model_of_folder
from rampcli.config.compose import apply_overrides
from rampcli.config.file_facts import FILES, without_files
from rampcli.config.layers import PLAN_PLACE, Stack, stack_of
from rampcli.config.reading import join_split_lists
from rampcli.errors import ErrorReport, typeable
from rampcli.estimate.model_size import model_size
from rampcli.launch.files import read_files
from rampcli.planning.resolve import resolve
from rampcli.planning.run_plan import Resolved
from rampcli.settings.by_key import leaves
from rampcli.settings.config import Config
from rampcli.settings.data import lacks_path

PATH, FOLDER = "data.path=FILE", "model.init_from=FOLDER"


def recipe_facts(name: str, words: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the facts that `rampcli recipes NAME KEY=VALUE` shows.

    Args:
        name: as in `llm.from_factory`.
        words: `KEY=VALUE` and `GROUP=OPTION`.

    Raises:
        UsageError: the recipe cannot be loaded, or the words are wrong; all errors together.
    """
    report = ErrorReport()
    words = join_split_lists(words, report=report)
    config = llm.from_factory(name)
    required = _required(apply_overrides(config, words, report=ErrorReport()))
    stack = apply_overrides(config, [*words, *required], report=report)
    if required:  # the files are not known yet
        resolved = resolve(stack, report=report)
    else:
        stack = with_model_of_folder(stack, report=report)
        resolved = resolve(stack, read_files=read_files, report=report)
    size = None if FOLDER in required else model_size(_sized(resolved.config))
    typed = (typeable(word) for word in words)
    return {
        **recipe_row(name, resolved.config),
        "parameters": None if size is None else size.parameters,
        "embedding_parameters": None if size is None else size.embeddings,
        "tokens": resolved.tokens,
        **_made_of(resolved),
        "overrides": words,
        "command": " ".join(("rampcli pretrain --factory", typeable(name), *typed, *required)),
    }


def _required(stack: Stack) -> list[str]:
    """Returns the settings that the recipe needs from its user, with placeholders as values."""
    config = stack.config()
    lacks_folder = takes_model_from_folder(stack) and config.model.init_from is None
    return [*([FOLDER] if lacks_folder else []), *([PATH] if lacks_path(config) else [])]


def _sized(config: Config) -> Config:
    """Returns a configuration whose vocabulary has no tokens if its size is unknown."""
    tokens = config.model.vocab_size or without_files(config).tokens or 0
    return replace(config, model=replace(config.model, vocab_size=tokens))


def recipe_row(name: str, config: Config) -> dict[str, Any]:
    """Returns the row of a recipe in the table."""
    recipe, place = llm.find_recipe(name)
    description, _, source = (inspect.getdoc(recipe) or "").partition("\n\nSource: ")
    sized = _sized(config)
    return {
        "name": name,
        "description": description,
        "source": source or place,
        "parameters": None
        if takes_model_from_folder(stack_of(config))
        else model_size(sized).parameters,
        "vocab_size": sized.model.vocab_size or None,
        "sequence_length": config.data.sequence_length,
        "global_batch_size": config.model.global_batch_size,
        "rampup_batch_size": config.model.rampup_batch_size,
        "num_nodes": config.trainer.num_nodes,
        "gpus_per_node": config.trainer.devices,
    }


def _made_of(resolved: Resolved) -> dict[str, Any]:
    """Returns the options of conf/ that a recipe is made of, and the settings that it sets."""
    # Options are listed even if something else sets each of their values.
    options = {
        group: option
        for group, option in stack_of(resolved.config).choices.items()
        if isinstance(option, str)
    }
    settings: dict[str, Any] = {}
    stack = stack_of(resolved.config)
    for key, _ in leaves(resolved.config):
        entry = next(
            each for each in reversed(stack.history(key)) if each.by not in (FILES, PLAN_PLACE)
        )
        folder, _, file = entry.source.partition("/")
        if entry.line is not None and file.endswith(".py"):
            settings[key] = entry.value
        elif entry.line is not None:
            options[folder] = file.removesuffix(".yaml")
    return {"options": options, "settings": settings}
