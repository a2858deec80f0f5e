import re
from pathlib import Path

import pytest

from docs import generate

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def test_the_page_of_settings_shows_the_schema():
    page = (DOCS / "reference" / "config.md").read_text(encoding="utf-8")
    assert page == generate.config_page(), "run `make docs` and commit what it writes"


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_every_link_between_pages_has_a_target(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), target


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
