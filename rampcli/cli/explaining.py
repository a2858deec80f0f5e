"""`rampcli explain`: settings, their values, and where the values come from."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from rampcli.cli.composing import compose_rl, compose_words
from rampcli.config.checks.rl import is_rl
from rampcli.config.settings import shown
from rampcli.config.words import join_split_lists
from rampcli.errors import Report, UsageError, visible
from rampcli.report.explain import explain

NO_RECIPE = "llama3_tiny"
NO_RL_RECIPE = "sort_digits"


def explain_keys(
    arguments: Sequence[str], *, factory: str | None, config_dir: Path | None, as_json: bool
) -> None:
    """Prints explanations of settings, as text or as JSON.

    Without a recipe, settings of reinforcement learning are explained in a run of `rampcli rl`.

    Raises:
        UsageError: there is no key among the arguments, or no such setting.
    """
    report, found = Report(), []
    joined = join_split_lists(arguments, report=report)
    report.close()
    keys = [argument for argument in joined if "=" not in argument]
    if not keys:
        raise UsageError(
            "explain needs the key of a setting", remedy="rampcli explain model.global_batch_size"
        )
    words = [word for word in joined if "=" in word]
    asks_rl = any(key.startswith("rl.") for key in keys)
    if factory is None and asks_rl:
        resolved = compose_rl(NO_RL_RECIPE, words, config_dir=config_dir)
    else:
        resolved = compose_words(factory or NO_RECIPE, words, config_dir=config_dir)
    for key in keys:
        with report.noting():
            found.append(explain(key, resolved))
    report.close()
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        if factory is None:
            recipe = f"{NO_RL_RECIPE} under rampcli rl" if asks_rl else NO_RECIPE
            typer.echo(f"in the recipe {recipe} (--factory chooses another)\n")
        elif asks_rl and not is_rl(resolved.config):
            typer.echo(f"{factory} without reinforcement learning (rl=grpo adds it)\n")
        typer.echo(visible("\n\n".join(map(_as_text, found)), keeps="\n"))


def _as_text(fact: dict[str, Any]) -> str:
    rows = {
        "meaning": fact["doc"],
        "value": shown(fact["value"])
        + (f", which comes to {fact['derived']}" if fact["derived"] is not None else ""),
        "set by": fact["set_by"],
        "instead of": "\n".join(
            f"{shown(entry['value'])} ({entry['set_by']})" for entry in fact["overrode"]
        ),
        "type": fact["type"],
        "unit": fact["unit"],
        "range": fact["range"],
        "default": shown(fact["default"]) if fact["type"] else None,
    }
    lines = [fact["key"]]
    for name, text in rows.items():
        for index, line in enumerate(str(text).splitlines() if text else []):
            lines.append(f"  {name if index == 0 else '':<12}{line}")
    return "\n".join(lines)
