"""Runs every command of the pages that does not train and compares its output with the page.

The words of the other commands are checked: options and settings must exist. So are the names and
settings in Python. Tutorials are followed in tests/first_hour.
"""

import ast
import importlib
import re
from operator import attrgetter
from pathlib import Path

import pytest
import typer

import rampcli
from doc_examples import ROOT, differs, examples_of
from rampcli import llm
from rampcli.cli import console
from rampcli.cli.light_typer import with_views
from rampcli.cli.main import app
from rampcli.cli.recipes import write_recipe
from rampcli.config.compose import apply_overrides, rl_word
from rampcli.config.groups import folders
from rampcli.config.reading import join_split_lists
from rampcli.config.sweeps import NOT_VARIED, combinations
from rampcli.errors import ErrorReport
from rampcli.settings.config import Config
from rampcli.words.rl import RL_COMMAND, expand_words

PAGES = [
    ROOT / "README.md",
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if page.stem not in ("bad-input", "config")
    ),
]
WIDTHS = (110, 130)
"""Terminals that the pages show."""


def runs_here(example):
    options = {"--dry-run", "--cfg", "--estimate", "--dialects"} & {*example.words}
    trains = {"pretrain", "rl", "sweep", "tune"} & {*example.words} and not options
    elsewhere = any(
        re.search(r"[A-Z]{4,}|\.\.\.|^(runs/|name=|completion|import|status|serve|data$)", word)
        for word in example.words
    )
    return (
        example.is_plain
        and not elsewhere
        and (not trains or any(line.startswith("error: ") for line in example.shown))
    )


ALL = [example for page in PAGES for example in examples_of(page) if example.words]
EXAMPLES = [example for example in ALL if runs_here(example)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.place)
def test_the_output_shown_on_a_page_is_what_the_command_prints(
    example, rampcli, tmp_path, monkeypatch
):
    example.write_files(tmp_path)
    differences = []
    for width in WIDTHS:
        monkeypatch.setattr(console, "PIPE_WIDTH", width)
        ended = rampcli(*example.words)
        differences.append(differs(example.shown, (ended.stdout + ended.stderr).splitlines()))
        if differences[-1] is None:
            break
    assert None in differences, differences[0]
    assert ended.exit_code == (
        2 if any(line.startswith("error: ") for line in example.shown) else 0
    )


@pytest.mark.parametrize(
    "example",
    [example for example in ALL if not runs_here(example)],
    ids=lambda example: example.place,
)
def test_options_and_settings_of_a_command_that_is_not_run_here_exist(example, tmp_path):
    """This parses the words as the command does, and lays them over the recipe."""
    command, words = typer.main.get_command(app), list(example.words)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    context = command.context_class(command, **command.context_settings)
    options, _, _ = command.make_parser(context).parse_args(with_views(words))
    if "factory" in options:
        example.write_files(tmp_path)
        (tmp_path / "mine" / "model").mkdir(parents=True, exist_ok=True)
        for model in ("chat", "theirs"):
            (tmp_path / "mine" / "model" / f"{model}.yaml").write_text("num_layers: 2\n")
        if options["factory"] == "mine.py":
            write_recipe("mine")
            page = (ROOT / example.place.partition(":")[0]).read_text(encoding="utf-8")
            with Path("mine.py").open("a") as recipe:
                recipe.writelines(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
        check_settings(options, command.name)


def check_settings(options, command):
    report = ErrorReport()
    factory, config_dir = options["factory"], options.get("config_dir")
    folder = None if config_dir is None else Path(config_dir.replace("REPOSITORY", str(ROOT)))
    words = join_split_lists(
        options.get("rl_overrides", options.get("overrides")) or (), report=report
    )
    config = llm.from_factory(factory)
    if command == "sweep":  # its last run
        keys = {word.partition("=")[0] for word in words} - {*NOT_VARIED}
        runs = combinations(words, among=folders(folder), report=report, varied_before=keys)
        words = runs[-1].words if runs else ()
    if command == "rl":
        own = [rl_word(factory, config_dir=folder)]
        config = apply_overrides(config, own, place=RL_COMMAND).config()
        words = expand_words(words)
    apply_overrides(config, words, config_dir=folder, report=report)
    report.close()


def test_enough_commands_of_the_pages_are_run():
    assert len(EXAMPLES) > 60


PYTHON = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}:{number}")
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    )
    if page.stem != "python" or page.parent.name != "reference"  # signatures
]


@pytest.mark.parametrize("block", PYTHON)
def test_python_on_a_page_uses_names_and_settings_that_exist(block):
    for node in ast.walk(ast.parse(re.sub(r"^!.*", "", block, flags=re.MULTILINE))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("rampcli"):
            module = importlib.import_module(str(node.module))
            assert [one.name for one in node.names if not hasattr(module, one.name)] == []
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("rampcli", "llm"):
            owner = llm if ast.unparse(node.value) == "llm" else rampcli
            assert hasattr(owner, node.attr)
        if isinstance(node, ast.Assign):
            name, _, key = ast.unparse(node.targets[0]).partition(".")
            if name in ("recipe", "config") and key:
                attrgetter(key)(Config())  # raises an AttributeError if there is no such name
