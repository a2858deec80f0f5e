"""PREFIX.json: what a corpus was built from, and what came of it."""

import json
from pathlib import Path
from typing import Any

from rampcli.data.indexed import manifest_of
from rampcli.errors import UsageError

FORMAT = 1
NEEDED = {"vocab_size", "largest_token", "files"}
"""By those who train on the corpus."""


def read_manifest(prefix: Path) -> dict[str, Any] | None:
    """What PREFIX.json says; None where there is none, as beside files that Megatron wrote.

    Raises:
        UsageError: it cannot be read, or is no manifest of this format.
    """
    path = manifest_of(prefix)
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot read {path}: {error}", remedy="the manifest that `rampcli data build` wrote, or none") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or not manifest.keys() >= NEEDED:
        raise UsageError(f"{path} is no manifest of format {FORMAT}", remedy="the manifest that `rampcli data build` wrote, or none")
    return manifest
