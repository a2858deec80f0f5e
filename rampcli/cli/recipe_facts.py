"""What a recipe is made of: its size, options, settings and source."""

import inspect
from dataclasses import replace
from typing import Any

from rampcli import llm
from rampcli.checkpoint.starting_weights import takes_model_from_folder
from rampcli.config.compose import apply_overrides
from rampcli.config.corpora import lacks_path
from rampcli.config.file_facts import FILES, without_files
from rampcli.config.layers import stack_of
from rampcli.config.schema import Config
from rampcli.config.settings import leaves
from rampcli.estimate.model_size import count_parameters
from rampcli.planning.resolve import resolve

PATH, FOLDER = "data.path=FILE", "model.init_from=FOLDER"


def recipe_facts(name: str) -> dict[str, Any]:
    """Returns the facts that `rampcli recipes NAME` shows.

    Raises:
        UsageError: the recipe cannot be loaded.
    """
    config = llm.from_factory(name)
    return {
        **recipe_row(name, config),
        **_made_of(config),
        "command": " ".join(("rampcli pretrain --factory", name, *_required(config))),
    }


def _required(config: Config) -> list[str]:
    """Returns the settings that the recipe needs from its user, with placeholders as values."""
    return [
        *([FOLDER] if takes_model_from_folder(stack_of(config)) else []),
        *([PATH] if lacks_path(config) else []),
    ]


def recipe_row(name: str, config: Config) -> dict[str, Any]:
    """Returns the row of a recipe in the table."""
    recipe, place = llm.find_recipe(name)
    description, _, source = (inspect.getdoc(recipe) or "").partition("\n\nSource: ")
    vocab_size = config.model.vocab_size or without_files(config).tokens
    model = replace(config.model, vocab_size=vocab_size or 0)
    return {
        "name": name,
        "description": description,
        "source": source or place,
        "parameters": None
        if takes_model_from_folder(stack_of(config))
        else count_parameters(model, sequence_length=config.data.sequence_length),
        "vocab_size": vocab_size,
        "sequence_length": config.data.sequence_length,
        "global_batch_size": config.model.global_batch_size,
        "rampup_batch_size": config.model.rampup_batch_size,
        "num_nodes": config.trainer.num_nodes,
        "gpus_per_node": config.trainer.devices,
    }


def _made_of(config: Config) -> dict[str, Any]:
    """Returns the options of conf/ that a recipe is made of, and the settings that it sets."""
    resolved = resolve(apply_overrides(config, _required(config)))
    # Options are listed even if something else sets each of their values.
    options = {
        group: option
        for group, option in stack_of(config).choices.items()
        if isinstance(option, str)
    }
    settings: dict[str, Any] = {}
    stack = stack_of(resolved.config)
    for key, _ in leaves(resolved.config):
        entry = next(each for each in reversed(stack.history(key)) if each.by != FILES)
        folder, _, file = entry.source.partition("/")
        if entry.line is not None and file.endswith(".py"):
            settings[key] = entry.value
        elif entry.line is not None:
            options[folder] = file.removesuffix(".yaml")
    return {"options": options, "settings": settings}
