"""Prints a configuration as it was composed (`--cfg`), and how it is composed (`--info`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
import yaml

from rampcli.cli.base import ALL_VIEWS, HYDRA_VIEW, JOB_VIEW, SOURCES_VIEW, Base
from rampcli.cli.composing import compose_beside_recipe, compose_rl, lay_over, words_of_rl
from rampcli.config.compose import compose_explained
from rampcli.config.composition import Composition
from rampcli.config.foreign_files import Effects
from rampcli.config.layers import Stack
from rampcli.config.references import (
    MISSING,
    Unresolved,
    above,
    has_reference,
    is_below,
    resolved,
)
from rampcli.errors import ErrorReport, shown, visible
from rampcli.report.explain import subtree, with_provenance
from rampcli.settings.by_key import find_setting, nest, settings
from rampcli.words import unwrapped, wrapped
from rampcli.words.rl import expand_words

WHOLE = "_global_"
"""The package that is the whole configuration."""


def show(base: Base, words: Sequence[str], *, is_rl: bool, retunes: bool) -> None:
    """Prints what `--cfg` or `--info` asks for.

    Args:
        base: what the words are laid over, and what is asked for.
        words: those of the command line.
        is_rl: whether the command is `rampcli rl`.
        retunes: whether settings that are tied to the batch follow it.

    Raises:
        UsageError: the configuration cannot be composed; or, for its sources, not be planned.
    """
    if base.cfg == SOURCES_VIEW:
        run = (
            compose_rl(base, words)
            if is_rl
            else compose_beside_recipe(base, words, retunes=retunes, resumes=True)
        )
        text = with_provenance(run, _section(base.package))
        unchanged = "" if base.package else _unchanged_keys(run.config.stack)
        _print_section(text + unchanged, base.package)
        return
    report = ErrorReport()
    rl_words = words_of_rl(base, words) if is_rl else []
    stack = lay_over(
        base, expand_words(words) if is_rl else words, report=report, rl_words=rl_words
    )
    if not base.resolve:  # what must still be set is printed as ???
        report.errors = [one for one in report.errors if not one.message.endswith(MISSING)]
    report.close()
    if base.info is not None:
        _print("\n\n".join(_info(base.info, stack)) + "\n")
        return
    parts: dict[str, Any] = {}
    if base.cfg in (HYDRA_VIEW, ALL_VIEWS):
        parts[HYDRA_VIEW] = _of_hydra(stack, words)
    if base.cfg in (JOB_VIEW, ALL_VIEWS):
        parts |= _job(stack, resolves=base.resolve)
    _print_section(_yaml(subtree(parts, _section(base.package))), base.package)


def _section(package: str | None) -> str:
    """Returns the dotted key of the section that a package is; empty for all."""
    return "" if package in (None, WHOLE) else str(package)


def _print_section(text: str, package: str | None) -> None:
    """Prints the text of a section below the header of its package; of all without one."""
    end = text.rstrip("\n")
    _print(text if package is None else f"# @package {package}\n{end}\n")


def _unchanged_keys(stack: Stack) -> str:
    """Returns comments with the settings of another system's files that do not change the run."""
    effects: Effects | None = stack.effects
    if effects is None or not effects.unchanged:
        return ""
    lines = (f"#   {key}: {shown(value)}" for key, value in effects.unchanged.items())
    title = f"# settings of {effects.format.name} that do not change the run here:"
    return "\n".join((title, *lines, ""))


def _print(text: str) -> None:
    typer.echo(visible(text, keeps="\n"), nl=False)


def _yaml(tree: Any) -> str:
    text: str = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=float("inf"))
    return text.removesuffix("...\n")


def _job(stack: Stack, *, resolves: bool) -> dict[str, Any]:
    """Returns the settings as they were composed, nested."""
    written = stack.written
    referred = [key for key, value in written.items() if has_reference(value)]
    # A section that is a reference beside keys of its own can only be written out.
    mixed = [key for key in referred if any(one != key and is_below(one, key) for one in written)]
    written_out = referred if resolves else mixed
    found = resolved(written)[0] if written_out else {}
    values: dict[str, Any] = {}
    for key, value in written.items():
        if key in written_out:
            values |= {one: found[one] for one in found if is_below(one, key)}
        else:
            values[key] = value
    for value in values.values():
        if isinstance(value, Unresolved):
            raise value.error
    hidden = _hidden(stack, resolves=resolves)
    placed, referring = (_placed(one, stack, hidden) for one in (values, dict.fromkeys(referred)))
    sections = {one for key in placed for one in above(key)}
    defaults = {
        key: one.default
        for key, one in settings().items()
        if key in placed
        or not (key in sections or any(is_below(key, section) for section in referring))
    }
    return nest({**defaults, **placed})


def _hidden(stack: Stack, *, resolves: bool) -> dict[str, Any]:
    """Returns the values that do not apply, by key in Hydra's tree, see `Composition.hidden`."""
    composition: Composition | None = stack.composition
    hidden = {} if composition is None else dict(composition.hidden)
    for is_wrapped in (True, False) if resolves else ():
        beside = {unwrapped(key): key for key in hidden if (unwrapped(key) != key) == is_wrapped}
        values = {**stack.written, **{inside: hidden[key] for inside, key in beside.items()}}
        for inside, value in resolved(values)[0].items() if beside else ():
            if isinstance(value, Unresolved):
                raise value.error
            hidden |= {beside[inside]: value} if inside in beside else {}
    return hidden


def _placed(values: Mapping[str, Any], stack: Stack, hidden: Mapping[str, Any]) -> dict[str, Any]:
    """Returns composed values by their keys in Hydra's tree.

    They are in the section `rampcli.words.WRAPPER`, outside, or in both places.
    """
    composition: Composition | None = stack.composition
    files = () if composition is None else composition.files
    of_files = {key for one in files for key in one.placed}
    sections = {key.split(".")[1] for key in of_files if key.startswith(wrapped(""))}
    placed: dict[str, Any] = {}
    for key, value in values.items():
        inside = wrapped(key)
        is_typed = key in stack.words and (find_setting(key) or key.partition(".")[0] in sections)
        is_inside = not of_files.isdisjoint((inside, *above(inside))) or (sections and is_typed)
        placed |= {inside: value} if is_inside else {}
        placed |= {key: value} if key in of_files or not is_inside else {}
        if key not in stack.words:
            placed |= {one: hidden[one] for one in (inside, key) if one in hidden}
    return placed


def _of_hydra(stack: Stack, words: Sequence[str]) -> dict[str, Any]:
    """Returns what an application of Hydra would have in its section `hydra`, where it applies."""
    import hydra

    config = stack.config()
    primary = stack.primary
    return {
        "run": {"dir": config.run_dir or f"runs/{config.name}"},
        "sweep": {"dir": config.run_dir or f"runs/{config.name}_sweep"},
        "searchpath": [str(folder) for folder in primary.folders],
        "job": {"name": "rampcli", "config_name": primary.name},
        "overrides": {"task": list(words)},
        "runtime": {
            "version": hydra.__version__,
            "cwd": str(Path.cwd()),
            "choices": dict(compose_explained(stack).choices),
        },
    }


def _info(what: str, stack: Stack) -> list[str]:
    """Returns the parts of `--info`, each a text of several lines."""
    composition = compose_explained(stack)
    parts = {
        "defaults": _defaults_table(composition),
        "defaults-tree": "\n".join(composition.tree),
        "searchpath": "\n".join(map(str, stack.primary.folders)),
        "config": _yaml(_job(stack, resolves=False)).rstrip("\n"),
    }
    return list(parts.values()) if what == ALL_VIEWS else [parts[what]]


def _defaults_table(composition: Composition) -> str:
    """Returns the defaults list with the package of each file and the file that names it."""
    rows = [("config", "package", "parent"), *composition.defaults]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(
        f"{path:<{widths[0]}}  {package:<{widths[1]}}  {parent}".rstrip()
        for path, package, parent in rows
    )
