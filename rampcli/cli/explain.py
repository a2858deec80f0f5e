"""`rampcli explain`: settings, their values, and where the values come from."""

import json
from dataclasses import replace
from typing import Annotated, Any

import typer

from rampcli.cli.base import Base
from rampcli.cli.options import AsJson, Retune
from rampcli.errors import ErrorReport, UsageError, shown, visible

DEFAULT_RECIPE = "llama3_tiny"
DEFAULT_RL_RECIPE = "sort_digits"


def explain(
    base: Base,
    keys: Annotated[list[str], typer.Argument(metavar="KEY")],
    as_json: AsJson = False,
    retune: Retune = False,
) -> None:
    """Show what a setting means, its value, and what set it.

    Args:
        keys: Settings to explain. KEY=VALUE overrides the recipe.
    """
    from rampcli.cli.composing import compose_beside_recipe, compose_rl
    from rampcli.config.reading import join_split_lists
    from rampcli.report.explain import explain_all
    from rampcli.settings.rl import is_rl

    report, found = ErrorReport(), []
    joined = join_split_lists(keys, report=report)
    report.close()
    words = [word for word in joined if "=" in word or word.startswith("~")]
    asked = [word for word in joined if word not in words]
    if not asked:
        raise UsageError(
            "explain needs the key of a setting", remedy="rampcli explain model.global_batch_size"
        )
    asks_rl = any(key.startswith("rl.") for key in asked)
    has_start = base.has_start(words)
    if has_start:
        resolved = compose_beside_recipe(base, words, retunes=retune)
    elif asks_rl:
        resolved = compose_rl(replace(base, factory=DEFAULT_RL_RECIPE), words)
    else:
        base = replace(base, factory=DEFAULT_RECIPE)
        resolved = compose_beside_recipe(base, words, retunes=retune)
    for key in asked:
        with report.noting():
            found += explain_all(key, resolved)
    report.close()
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        if not has_start:
            recipe = f"{DEFAULT_RL_RECIPE} under rampcli rl" if asks_rl else DEFAULT_RECIPE
            typer.echo(f"in the recipe {recipe} (--factory chooses another)\n")
        elif asks_rl and not is_rl(resolved.config):
            note = f"{base} without reinforcement learning (rl=grpo adds it)"
            typer.echo(visible(note) + "\n")
        typer.echo(visible("\n\n".join(map(_as_text, found)), keeps="\n"))


def _as_text(fact: dict[str, Any]) -> str:
    from rampcli.report.plan_notes import costs_text

    rows = {
        "meaning": fact["doc"],
        "value": fact["set_by"] and shown(fact["value"]) + _derived(fact["derived"]),
        "set by": fact["set_by"],
        "in the run": (run := fact["in_run"]) and f"{shown(run['value'])} ({run['set_by']})",
        "in phases": ", ".join(f"{name}: {shown(own)}" for name, own in fact["in_phases"].items()),
        "instead of": "\n".join(
            f"{shown(entry['value'])} ({entry['set_by']})" for entry in fact["overrode"]
        ),
        "costs": "\n".join(costs_text(fact["key"], fact["costs"])),
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


def _derived(derived: Any) -> str:
    """Returns what a value comes to. That of the end of a phase is a position."""
    if derived is None:
        return ""
    if isinstance(derived, dict):
        counts = (f"{derived[unit]:,} {unit}" for unit in ("samples", "steps", "tokens"))
        return f", which comes to {', '.join(counts)}"
    return f", which comes to {derived}"
