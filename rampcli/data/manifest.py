"""PREFIX.json: what a corpus was built from, and what came of it."""

from pathlib import Path
from typing import Any

from rampcli.data.indexed import manifest_of
from rampcli.errors import DamagedFileError, UsageError
from rampcli.records import ANY, COUNT, POSITIVE, check_shape, read_json

FORMAT = 1
MOST_BYTES = 256 << 20
"""A manifest names every input, and there may be millions."""
FILE = {"bytes": COUNT, "sha256": str}
MANIFEST = {
    **dict.fromkeys(("tokens", "documents", "empty", "skipped", "text_bytes"), COUNT),
    "largest_token": (COUNT, None),
    "vocab_size": POSITIVE,
    "eod": (COUNT, None),
    "eod_token": (str, None),
    "inputs": ANY,
    "tokenizer": str,
    "tokenizer_sha256": (str, None),
    "eod_option": (str, None),
    "text_key": str,
    "on_bad_record": str,
    "files": {"bin": FILE, "idx": FILE, "tokenizer": FILE},
}
"""The shape of a manifest, as `rampcli.records` has it."""


def read_manifest(prefix: Path) -> dict[str, Any] | None:
    """Returns what PREFIX.json says, or None if it does not exist: Megatron writes no such file.

    Raises:
        UsageError: it cannot be read, or is not a manifest of this format.
    """
    path, remedy = manifest_of(prefix), "the manifest that `rampcli data build` wrote, or none"
    try:
        manifest: dict[str, Any] = read_json(path, {"format": COUNT}, most_bytes=MOST_BYTES)
        if manifest["format"] != FORMAT:
            raise UsageError(f"{path} is no manifest of format {FORMAT}", remedy=remedy)
        check_shape(manifest, MANIFEST, where=str(path))
    except FileNotFoundError:
        return None
    except DamagedFileError as error:
        raise UsageError(error.message, remedy=remedy) from error
    return manifest
