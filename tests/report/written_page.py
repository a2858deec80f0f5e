"""Reads the data in a report that was written as HTML."""

import json
import re
from typing import Any


def data_of(page: str) -> dict[str, Any]:
    """Returns the data in the text of a report."""
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert text is not None
    found: dict[str, Any] = json.loads(text[1])
    return found
