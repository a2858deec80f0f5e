"""The page's own files: the live page as it is served, and a report as one file."""

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from rampcli.errors import printable

PAGE = Path(__file__).with_name("page")
STYLES = ("uplot/uPlot.min.css", "page.css")
SCRIPTS = (
    "uplot/uPlot.iife.min.js",
    "format.js",
    "elements.js",
    "scales.js",
    "marks.js",
    "charts.js",
    "panels.js",
    "tables.js",
    "source.js",
    "page.js",
)
"""In the order in which they are run: each may use what those before it define."""
KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}


@cache
def _text(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def static_files() -> dict[str, tuple[str, bytes]]:
    """Returns the type and the content of the page's styles and scripts, by name."""
    return {name: (KINDS[Path(name).suffix], _text(name).encode()) for name in (*STYLES, *SCRIPTS)}


def live_page() -> bytes:
    """Returns the page that asks a server for its data."""
    links = [f'<link rel="stylesheet" href="{name}">' for name in STYLES]
    scripts = [f'<script defer src="{name}"></script>' for name in SCRIPTS]
    return _fill(title="Runs", head=[*links, *scripts], data="").encode()


def report_page(runs: Sequence[dict[str, Any]], *, title: str, facts: dict[str, Any]) -> bytes:
    """Returns a page that holds its styles, scripts and data, and loads nothing.

    Its policy allows only these scripts, so that no text of a run can run as one.

    Args:
        runs: what `run_data` returns of each run.
        title: title of the page.
        facts: `made` and the like, which the page shows.
    """
    styles, scripts = ([_text(name) for name in names] for names in (STYLES, SCRIPTS))
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)};"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = [
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        *(f"<style>{style}</style>" for style in styles),
    ]
    data = f'<script type="application/json" id="data">{_inline({**facts, "runs": runs})}</script>'
    code = "".join(f"<script>{script}</script>\n" for script in scripts)
    return _fill(title=title, head=head, data=data + "\n" + code).encode()


def _fill(*, title: str, head: Sequence[str], data: str) -> str:
    before, _, after = _text("page.html").partition("{{data}}")
    before = before.replace("{{head}}", "\n".join(head), 1)
    # printable: the name of a folder need not be Unicode, and the page must be.
    return before.replace("{{title}}", escape(printable(title)), 1) + data + after


def _hashes(texts: Sequence[str]) -> str:
    """Returns sources of a policy that allow exactly these texts."""
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def _inline(data: dict[str, Any]) -> str:
    """Returns data as JSON that cannot end the element around it."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for one in "<>&":
        text = text.replace(one, f"\\u{ord(one):04x}")
    return text
