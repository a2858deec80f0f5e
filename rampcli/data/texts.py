"""Reads text files, and says what to do with files that are not plain text."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from rampcli.errors import UsageError, reading
from rampcli.guarded_folder import read_file

MOST_TEXT_BYTES = 4 << 30
"""Largest corpus of text files, which is held in memory."""
JSON_LINES = (".jsonl", ".ndjson")
PACKED = (".gz", ".zst", ".parquet")
"""Endings of files that are not text, but that `rampcli data build` reads."""
BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")
"""Begin a text in UTF-16."""


def read_texts(path: Path) -> list[str]:
    """Returns the text of a file, or of all files below a folder, sorted by name.

    Hidden files and folders are left out.

    Raises:
        UsageError: a file cannot be read or is not text, all files are JSON lines, or the text is
            too large for memory.
    """
    with reading(path, remedy="a text file or a folder"):
        files = sorted(_files_below(path)) if path.is_dir() else [path]
        if sum(file.stat().st_size for file in files) > MOST_TEXT_BYTES:
            raise UsageError(
                f"{path} has more than {MOST_TEXT_BYTES >> 30} GB of text, which data.source=text"
                " would hold in memory",
                remedy=build_remedy(path),
            )
        if files and all(file.suffix in JSON_LINES for file in files):
            raise UsageError(
                f"{path} has JSON lines, and data.source=text would train on their braces and keys",
                remedy=build_remedy(path),
            )
        return [_decode(file, read_file(file, most_bytes=MOST_TEXT_BYTES)) for file in files]


def is_plain_text(path: Path) -> bool:
    """Returns False if the name of a file says that only `rampcli data build` can read it."""
    return path.suffix not in (*JSON_LINES, *PACKED)


def build_remedy(path: Path) -> str:
    """Returns the command that builds a corpus of a file or a folder, and how to train on it."""
    output = path.parent / (path.name.partition(".")[0] or "corpus")
    if output.is_dir():
        output = output.with_name(f"{output.name}-corpus")
    return (
        f"`rampcli data build {shlex.quote(str(path))} --train-bpe 8192 --output"
        f" {shlex.quote(str(output))}`, and data=indexed data.path={output}"
    )


def _files_below(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and not any(
            part.startswith(".") for part in path.relative_to(folder).parts
        ):
            yield path


def _decode(file: Path, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{file} is not text: byte {error.start:,} is not UTF-8",
            remedy=_remedy_of(file, content),
        ) from error


def _remedy_of(file: Path, content: bytes) -> str:
    """Returns what to do with a file that is not UTF-8."""
    if not is_plain_text(file):
        return build_remedy(file)
    is_wide = content.startswith(BYTE_ORDER_MARKS)
    if b"\0" in content and not is_wide:
        return "text files only"
    encoding = "UTF-16" if is_wide else "CP1252"
    return f"text in UTF-8: `iconv -f {encoding} -t UTF-8 {shlex.quote(str(file))} > NEW.txt`"
