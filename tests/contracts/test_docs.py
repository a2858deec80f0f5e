import re
from pathlib import Path

import pytest

from docs import generate

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("name", ["config", "python"])
def test_a_generated_page_shows_the_program(name):
    page = DOCS / "reference" / f"{name}.md"
    written = generate.PAGES[page]()
    assert page.read_text(encoding="utf-8") == written, "run `make docs` and commit what it writes"


PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
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
