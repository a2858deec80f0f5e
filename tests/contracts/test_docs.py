import re
from pathlib import Path

import pytest
import typer

from docs import generate
from rampcli.cli.main import app
from rampcli.config.groups import group_names

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.mark.parametrize(
    "page",
    [page for page in generate.PAGES if page.stem != "bad-input"],
    ids=lambda page: page.stem,
)
def test_a_generated_page_shows_the_program(page):
    written = generate.PAGES[page]()
    assert page.read_text(encoding="utf-8") == written, "run `make docs` and commit what it writes"


PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
OPTION = re.compile(r"`(--?[a-z][a-z-]*)")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)]*))?\)")


def prose_of(page):
    """Returns the text of a page without its blocks in fences."""
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors_of(page):
    """Returns the anchors that GitHub gives to the headings of a page."""
    anchors = []
    for heading in re.findall(r"^#+ (.*)$", prose_of(page), flags=re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        again = anchors.count(anchor)
        anchors.append(f"{anchor}-{again}" if again else anchor)
    return anchors


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_between_pages_has_a_target(page):
    for target, anchor in LINK.findall(prose_of(page)):
        if "://" not in target:
            linked = page.parent / target if target else page
            assert linked.exists(), target
            assert not anchor or anchor in anchors_of(linked), f"{target}#{anchor}"


def test_every_page_is_linked():
    linked = {
        (page.parent / target).resolve()
        for page in (ROOT / "README.md", *DOCS.rglob("*.md"))
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
        if "://" not in target
    }
    assert {page.resolve() for page in DOCS.rglob("*.md")} - linked == {
        (DOCS / "README.md").resolve()
    } - linked


def options_of_commands():
    """Yields each command and its options, such as `--factory` and `-f`."""
    waiting = [("rampcli", typer.main.get_command(app))]
    while waiting:
        name, command = waiting.pop()
        for part, inner in getattr(command, "commands", {}).items():
            waiting.append((f"{name} {part}", inner))
        if not hasattr(command, "commands"):
            options = [one for one in command.params if one.param_type_name == "option"]
            yield (
                name,
                {spelling for one in options for spelling in [*one.opts, *one.secondary_opts]},
            )


def test_the_page_of_commands_lists_every_command_and_every_option_of_a_group():
    page = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(rampcli [a-z ]*[a-z])\b", page.partition("\n## ")[0], re.MULTILINE)
    assert {name for name, _ in options_of_commands()} - {*listed} == set()
    for group in ((ROOT / "conf" / name) for name in group_names()):
        (options,) = re.findall(rf"^\| `{group.name}` \| [^|]* \| (.*) \|$", page, re.MULTILINE)
        if group.name != "model":  # one per recipe
            assert set(re.findall(r"`(\w+)`", options)) == {one.stem for one in group.iterdir()}


def test_the_page_of_commands_names_every_option_and_its_tables_no_others():
    page = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## `(rampcli [a-z ]+)`\n((?:(?!## ).*\n)*)", page, re.MULTILINE))
    same = {"rampcli llm pretrain": "rampcli pretrain"}
    for name, options in options_of_commands():
        section = sections[same.get(name, name)]
        cells = "".join(re.findall(r"^\| (`-.*?) \|", section, re.MULTILINE))
        assert options - {*OPTION.findall(section)} == set(), name
        assert {*OPTION.findall(cells)} - options == set(), name
