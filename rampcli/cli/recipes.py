"""`rampcli recipes`: lists the recipes, or shows what one is made of."""

import inspect
import json
from dataclasses import replace
from typing import Any

import typer

from rampcli import llm
from rampcli.batch.quantities import shorten
from rampcli.checkpoint.starting_model import takes_model_from_folder
from rampcli.cli.console import build_console, print_table, say
from rampcli.config.compose import apply_overrides
from rampcli.config.corpora import lacks_path
from rampcli.config.layers import stack_of
from rampcli.config.schema import Config
from rampcli.config.settings import shown
from rampcli.config.settling import FILES, without_files
from rampcli.config.snapshot import canonical_values
from rampcli.errors import UsageError
from rampcli.estimate.model_size import count_parameters
from rampcli.planning.resolve import resolve
from rampcli.report.tables import build_table

PATH, FOLDER = "data.path=FILE", "model.init_from=FOLDER"


def list_recipes(*, as_json: bool) -> None:
    """Prints all recipes, as a table or as JSON."""
    facts = [_facts(name, llm.from_factory(name)) for name in llm.recipe_names()]
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    table = build_table(
        "recipe", "parameters", "sequence", "batch", "GPUs", "source", left=("recipe", "source")
    )
    for fact in facts:
        table.add_row(
            fact["name"],
            "any" if fact["parameters"] is None else shorten(fact["parameters"]),
            str(fact["sequence_length"]),
            _batch(fact),
            str(fact["num_nodes"] * fact["gpus_per_node"]),
            fact["source"].partition(",")[0],
        )
    console = build_console()
    print_table(console, table)
    say(console, "\nrampcli recipes NAME shows what a recipe is made of")


def show_recipe(name: str, *, as_json: bool) -> None:
    """Prints what a recipe is made of, for a person or as JSON.

    Args:
        name: name of a recipe, or a recipe of a user: `FILE.py`, `FILE.py:NAME`, `MODULE:NAME`.
        as_json: print JSON.

    Raises:
        UsageError: there is no such recipe.
    """
    if not llm.is_own(name) and name not in llm.recipe_names():
        near = llm.similar_names(name, most=3)
        raise UsageError(
            f"there is no recipe {name}",
            remedy="rampcli recipes"
            if near == llm.recipe_names()
            else " or ".join(f"rampcli recipes {one}" for one in near),
        )
    config = llm.from_factory(name)
    found = _facts(name, config) | _made_of(config)
    found["command"] = " ".join(("rampcli pretrain --factory", name, *_required(config)))
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        say(build_console(), _to_text(found))


def _required(config: Config) -> list[str]:
    """Returns the words without which the recipe is refused."""
    return [
        *([FOLDER] if takes_model_from_folder(stack_of(config)) else []),
        *([PATH] if lacks_path(config) else []),
    ]


def _facts(name: str, config: Config) -> dict[str, Any]:
    """Returns the row of a recipe in the table."""
    recipe, own = llm.find_recipe(name)
    description, _, source = (inspect.getdoc(recipe) or "").partition("\n\nSource: ")
    vocab_size = config.model.vocab_size or without_files(config).tokens
    model = replace(config.model, vocab_size=vocab_size or 0)
    return {
        "name": name,
        "description": description,
        "source": source or own,
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
    # The values of an option may all be set elsewhere.
    options = {
        group: option
        for group, option in stack_of(config).choices.items()
        if isinstance(option, str)
    }
    own: dict[str, Any] = {}
    stack = stack_of(resolved.config)
    for key in canonical_values(resolved.config):
        entry = next(each for each in reversed(stack.history(key)) if each.by != FILES)
        place, _, line = entry.place.rpartition(":")
        folder, _, file = place.partition("/")
        if line.isdecimal() and file.endswith(".py"):
            own[key] = entry.value
        elif line.isdecimal():
            options[folder] = file.removesuffix(".yaml")
    return {"options": options, "settings": own}


def _batch(fact: dict[str, Any]) -> str:
    ramp = fact["rampup_batch_size"]
    return f"{ramp[0]} to {fact['global_batch_size']}" if ramp else str(fact["global_batch_size"])


def _shown_parameters(found: dict[str, Any]) -> str:
    if found["parameters"] is None:
        return "those of the model in the folder"
    of_text = "" if found["vocab_size"] else ", and those of the tokens in the text"
    return f"{found['parameters']:,}{of_text}"


def _to_text(found: dict[str, Any]) -> str:
    nodes, devices = found["num_nodes"], found["gpus_per_node"]
    rows = {
        "parameters": _shown_parameters(found),
        "sequence": f"{found['sequence_length']:,} tokens",
        "batch": f"{_batch(found)} samples",
        "GPUs": f"{nodes * devices}: {nodes} {'node' if nodes == 1 else 'nodes'} of {devices}",
        "source": found["source"],
    }
    lines = [
        found["name"],
        "",
        found["description"],
        "",
        *(f"{name:<12}{value}" for name, value in rows.items()),
        "",
        "options of conf/",
        *(f"  {group}={option}" for group, option in found["options"].items()),
        "",
        "settings of its own",
        *(f"  {key}={shown(value)}" for key, value in found["settings"].items()),
        "",
        "run it with",
        f"  {found['command']}",
    ]
    return "\n".join(lines)
