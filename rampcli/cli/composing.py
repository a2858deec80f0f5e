"""Turns the words of a command line into a resolved configuration. All errors are in one report."""

from collections.abc import Sequence
from pathlib import Path

from rampcli import llm
from rampcli.checkpoint.manifest import consumed_samples
from rampcli.config.compose import apply_overrides
from rampcli.config.groups import group_names
from rampcli.config.layers import COMMAND_LINE
from rampcli.config.resolve import resolve
from rampcli.config.run_plan import Resolved
from rampcli.config.words import join_split_lists, parse
from rampcli.errors import Report
from rampcli.run_directory import RunDirectory


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
