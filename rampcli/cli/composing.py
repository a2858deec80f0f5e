"""Turns the words of a command line into a resolved configuration. All errors are in one report."""

from collections.abc import Sequence
from pathlib import Path

from rampcli import llm
from rampcli.batch.dialects.rl import expand_words
from rampcli.checkpoint.manifest import consumed_samples
from rampcli.config.compose import apply_overrides
from rampcli.config.groups import group_names, option_names
from rampcli.config.layers import COMMAND_LINE
from rampcli.config.resolve import resolve
from rampcli.config.run_plan import Resolved
from rampcli.config.words import join_split_lists, parse
from rampcli.errors import Report
from rampcli.run_directory import RunDirectory

DEFAULT_RL = "grpo"
"""Option of the group `rl` for recipes without one of their own."""


def rl_words(factory: str, words: Sequence[str], *, config_dir: Path | None) -> list[str]:
    """Returns the words of `rampcli rl` with those that make a recipe's run one of RL.

    They choose the option of the group `rl` that has the recipe's name, or `rl=grpo`, and another
    run directory than the one of pretraining.
    """
    recipe, expanded = factory.partition("(")[0].strip(), expand_words(words)
    given = {word.partition("=")[0] for word in expanded}
    added = []
    if "rl" not in given:
        known = recipe in option_names("rl", config_dir)
        added.append(f"rl={recipe if known else DEFAULT_RL}")
    if not {"name", "run_dir"} & given:
        added.append(f"name={recipe}_rl")
    return [*added, *expanded]


def compose_words(
    factory: str, words: Sequence[str], *, config_dir: Path | None, resumes: bool = False
) -> Resolved:
    """Lays words over a recipe, checks the result and plans its run.

    Args:
        factory: as it is typed, `llama3_8b` or `'llama3_8b(num_nodes=2)'`.
        words: `KEY=VALUE` and `GROUP=OPTION`.
        config_dir: a folder of further group options.
        resumes: whether the run resumes from its checkpoint. Stages before it are not checked.

    Raises:
        UsageError: all errors together.
    """
    report = Report()
    joined = join_split_lists(words, report=report)
    config = None
    with report.noting():
        config = llm.from_factory(factory)
    if config is None:
        parse(joined, groups=group_names(config_dir), place=COMMAND_LINE, report=report)
        report.close()
    assert config is not None
    stack = apply_overrides(config, joined, config_dir=config_dir, report=report)
    if resumes:
        return resolve(
            stack,
            consumed_samples_in=lambda path: consumed_samples(RunDirectory(path)),
            report=report,
        )
    return resolve(stack, report=report)
