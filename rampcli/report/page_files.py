"""The files of the page: those that a server sends, and a report of some runs as one file."""

import base64
import hashlib
import json
import time
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from rampcli.errors import printable
from rampcli.files.guarded_folder import replace_file
from rampcli.report.page_data import View, run_data
from rampcli.runs.directory import RunDirectory
from rampcli.runs.followed_run import FollowedRun

PAGE = Path(__file__).with_name("page")
STYLESHEETS = ("uplot/uPlot.min.css", "page.css")
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
REPORT_BUCKETS = 2000
"""Points per curve. A report cannot fetch more when a reader zooms, so it has more than a page."""
MIME_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}


@cache
def _text(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def static_files() -> dict[str, tuple[str, bytes]]:
    """Returns the type and the content of the page's styles and scripts, by name."""
    return {
        name: (MIME_TYPES[Path(name).suffix], _text(name).encode())
        for name in (*STYLESHEETS, *SCRIPTS)
    }


def live_page() -> bytes:
    """Returns the page that asks a server for its data."""
    links = [f'<link rel="stylesheet" href="{name}">' for name in STYLESHEETS]
    scripts = [f'<script defer src="{name}"></script>' for name in SCRIPTS]
    return _fill(title="Runs", head=[*links, *scripts], data="").encode()


def write_report_html(runs: Sequence[RunDirectory], path: Path) -> None:
    """Writes a report about runs, with their data, as an HTML file.

    A run whose files are damaged is shown with its error, and with what was read before it.

    Args:
        path: file to write or replace.

    Raises:
        UsageError: the folder of `path` is reached through a link below it.
        OSError: the file cannot be written.
    """
    made, found = time.time(), []
    for name, directory in zip(_names(runs), runs, strict=True):
        run = FollowedRun(name, directory)
        run.read()
        found.append(run_data(run, View(buckets=REPORT_BUCKETS)))
    replace_file(path, _report_page({"made": made, "runs": found}))


def _names(runs: Sequence[RunDirectory]) -> list[str]:
    """Returns the names of the folders, or their paths if two have the same name."""
    names = [run.path.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]


def _report_page(report: dict[str, Any]) -> bytes:
    """Returns a page that holds its styles, scripts and data, and loads nothing.

    Its policy allows only these scripts, so that no text of a run can run as one.
    """
    styles, scripts = ([_text(name) for name in names] for names in (STYLESHEETS, SCRIPTS))
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)};"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = [
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        *(f"<style>{style}</style>" for style in styles),
    ]
    data = f'<script type="application/json" id="data">{_inline(report)}</script>'
    code = "".join(f"<script>{script}</script>\n" for script in scripts)
    title = ", ".join(data["name"] for data in report["runs"])
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
