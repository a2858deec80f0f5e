"""`rampcli recipes`: lists the recipes, shows what one is made of, or writes a new one."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from rampcli.cli.options import AsJson, Overrides
from rampcli.errors import ErrorReport, UsageError, shown, typeable

TEMPLATE = Path(__file__).with_name("new_recipe.py.txt")
"""The file that `--new` writes, with `$name` for the name of the recipe."""


def recipes(
    recipe: Annotated[str | None, typer.Argument(metavar="NAME")] = None,
    overrides: Overrides = None,
    new: Annotated[str | None, typer.Option("--new", metavar="NAME")] = None,
    as_json: AsJson = False,
) -> None:
    """List recipes, show what one is made of, or write a new one.

    Args:
        recipe: Show what this recipe is made of.
        new: Write NAME.py, a recipe to start from.
    """
    if new is not None:
        if recipe is not None or overrides or as_json:
            raise UsageError(
                "--new takes neither a recipe nor --json", remedy=f"rampcli recipes --new {new}"
            )
        write_recipe(new)
    elif recipe is None:
        _list_recipes(as_json=as_json)
    else:
        _show_recipe(recipe, overrides or [], as_json=as_json)


def _list_recipes(*, as_json: bool) -> None:
    """Prints all recipes, as a table or as JSON."""
    from rampcli import llm
    from rampcli.batch.quantities import shorten
    from rampcli.cli.console import build_console, say
    from rampcli.cli.recipe_facts import recipe_row
    from rampcli.report.tables import build_table

    facts = [recipe_row(name, llm.from_factory(name)) for name in llm.recipe_names()]
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
    say(build_console(), table, "", "rampcli recipes NAME shows what a recipe is made of")


def _show_recipe(name: str, words: Sequence[str], *, as_json: bool) -> None:
    """Prints what a recipe is made of, which may be a user's: `FILE.py`, `FILE.py:NAME`.

    Args:
        words: settings that replace those of the recipe.
    """
    from rampcli import llm
    from rampcli.cli.console import build_console, say
    from rampcli.cli.recipe_facts import recipe_facts
    from rampcli.config.reading import join_split_lists

    if not llm.is_of_user(name) and name not in llm.recipe_names():
        near = llm.similar_names(name, most=3)
        raise UsageError(
            f"there is no recipe {name}",
            remedy="rampcli recipes"
            if near == llm.recipe_names()
            else " or ".join(f"rampcli recipes {one}" for one in near),
        )
    joined = join_split_lists(words, report=ErrorReport())
    if (word := next((one for one in joined if "=" not in one), None)) is not None:
        raise UsageError(
            f"{word!r} is not KEY=VALUE: rampcli recipes takes one recipe, and settings for it",
            remedy=[
                *([f"rampcli recipes {word}"] if word in llm.recipe_names() else []),
                f"rampcli recipes {typeable(name)} KEY=VALUE",
            ],
        )
    found = recipe_facts(name, words)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        say(build_console(), _to_text(found))


def _batch(fact: dict[str, Any]) -> str:
    ramp = fact["rampup_batch_size"]
    return f"{ramp[0]} to {fact['global_batch_size']}" if ramp else str(fact["global_batch_size"])


def _shown_size(found: dict[str, Any]) -> str:
    from rampcli.batch.quantities import shorten
    from rampcli.estimate.model_size import ModelSize
    from rampcli.report.tables import size_text

    if found["parameters"] is None:
        return "that in the folder"
    if found["vocab_size"] is None:
        return f"{shorten(found['parameters'])} parameters, and those of the tokens in the text"
    size = ModelSize(parameters=found["parameters"], embeddings=found["embedding_parameters"])
    return size_text(size, tokens=found["tokens"])


def _to_text(found: dict[str, Any]) -> str:
    from rampcli.batch.quantities import counted

    nodes, devices = found["num_nodes"], found["gpus_per_node"]
    rows = {
        "model": _shown_size(found),
        "sequence": f"{found['sequence_length']:,} tokens",
        "batch": f"{_batch(found)} samples",
        "GPUs": f"{nodes * devices}: {counted(nodes, 'node')} of {devices}",
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
        *(("", "your settings") if found["overrides"] else ()),
        *(f"  {word}" for word in found["overrides"]),
        "",
        "run it with",
        f"  {found['command']}",
    ]
    return "\n".join(lines)


def write_recipe(name: str) -> None:
    """Writes `NAME.py` in the working directory, and prints the commands that use it.

    Raises:
        UsageError: a function cannot have this name, or the file exists.
    """
    from string import Template

    stem = name.removesuffix(".py")
    if not stem.isidentifier() or not stem.isascii():
        raise UsageError(
            f"--new {name}: a recipe's name is the name of a Python function",
            remedy="--new my_recipe",
        )
    file = Path(f"{stem}.py")
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(Template(TEMPLATE.read_text(encoding="utf-8")).substitute(name=stem))
    except FileExistsError as error:
        raise UsageError(f"{file} exists already", remedy="--new with another name") from error
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from error
    typer.echo(f"wrote {file}; see its plan, then train it:")
    typer.echo(f"  rampcli plan --factory {file}")
    typer.echo(f"  rampcli pretrain --factory {file}")
