"""PREFIX.json, the manifest of a corpus: its inputs, its options and the resulting counts."""

from pathlib import Path
from typing import Any

from rampcli.data.indexed import manifest_of
from rampcli.errors import DamagedFileError, UsageError
from rampcli.files.records import ANY, COUNT, POSITIVE, check_shape, read_json

FORMAT = 1
MOST_BYTES = 256 << 20
"""Largest manifest that is read. It names every input, and there may be millions."""
FILE = {"bytes": COUNT, "sha256": str}
SETTINGS = {
    "tokenizer": str,
    "tokenizer_sha256": (str, None),
    "eod_option": (str, None),
    "text_key": str,
    "on_bad_record": str,
}
"""Shape of what determines a build besides its inputs, for `rampcli.files.records.check_shape`."""
MANIFEST = {
    **SETTINGS,
    **dict.fromkeys(("tokens", "documents", "empty", "skipped", "text_bytes"), COUNT),
    "largest_token": (COUNT, None),
    "vocab_size": POSITIVE,
    "eod": (COUNT, None),
    "eod_token": (str, None),
    "inputs": ANY,
    "files": {"bin": FILE, "idx": FILE, "tokenizer": FILE},
}
"""Shape of a manifest."""


def read_manifest(prefix: Path) -> dict[str, Any] | None:
    """Returns the contents of PREFIX.json, or None if it does not exist: Megatron writes none.

    Raises:
        UsageError: the file cannot be read, or is not a manifest of this format.
    """
    path = manifest_of(prefix)
    remedy = "restore the manifest that `rampcli data build` wrote, or delete the file"
    try:
        manifest: dict[str, Any] = read_json(path, {"format": COUNT}, most_bytes=MOST_BYTES)
        if manifest["format"] != FORMAT:
            raise UsageError(f"{path} is not a manifest of format {FORMAT}", remedy=remedy)
        check_shape(manifest, MANIFEST, where=str(path))
    except FileNotFoundError:
        return None
    except DamagedFileError as error:
        raise UsageError(error.message, remedy=remedy) from error
    return manifest
