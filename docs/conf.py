"""Builds the documentation as a site: `make docs-site`.

The pages are the Markdown files of docs/ and of the top folder, unchanged.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

project = "rampcli"
extensions = ["myst_parser"]
include_patterns = [
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
    *("docs/*.md", "docs/**/*.md"),
]
root_doc = "docs/README"
nitpicky = True
myst_heading_anchors = 4
highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure"]  # a cell of a notebook may start with !

html_theme = "furo"
html_title = "rampcli"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False

FOREIGN = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')


def add_navigation(_: Sphinx, docname: str, source: list[str]) -> None:
    """Appends the navigation to the index page: one list for each heading that has links."""
    if docname != root_doc:
        return
    kind = ""
    for depth, title, text in re.findall(r"^(##+) (.*)\n((?:(?!##).*\n)*)", source[0], re.M):
        kind = title if depth == "##" else kind
        caption = title if depth == "##" else f"{kind}: {title[0].lower()}{title[1:]}"
        pages = re.findall(r"\]\(([^)#:]+)\.md\)", text)
        if pages:
            entries = "\n".join(page.replace("../", "/") for page in pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"


def finish(app: Sphinx, error: Exception | None) -> None:
    """Lets the site begin with the index page, and refuses pages that ask other hosts."""
    if error is not None or app.builder.name != "html":
        return
    folder = Path(app.outdir)
    for page in folder.rglob("*.html"):
        if foreign := FOREIGN.search(page.read_text(encoding="utf-8")):
            raise ExtensionError(f"{page} loads a file from another host: {foreign[0]}")
    lead = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
    (folder / "index.html").write_text(lead, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Connects the functions above with Sphinx, which calls this."""
    app.connect("source-read", add_navigation)
    app.connect("build-finished", finish)
